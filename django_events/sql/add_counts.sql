-- Add what a worker of a queue consumer did to the consumer's counts, when it ends; waits for who moves the position.
--
-- Parameters: consumer_id, handled, failed, discarded, dead_lettered (how many more).
-- Relies on: django_events_position (consumer_id, partition).
UPDATE django_events_position
SET
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    discarded = discarded + %(discarded)s,
    dead_lettered = dead_lettered + %(dead_lettered)s
WHERE consumer_id = %(consumer_id)s AND partition = -1
RETURNING id
