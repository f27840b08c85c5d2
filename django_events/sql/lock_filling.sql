-- Have a queue consumer for oneself to fill it from the log, if it is not live and nobody else does.
--
-- One that is stopped, paused or held is left alone. Parameters: consumer_id. Answers with the id up to which it is filled, and how many
-- deliveries it may have at most.
-- Relies on: the primary key of django_events_consumer, django_events_position (consumer_id, partition).
SELECT c.filled_until, c.max_pending
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = %(consumer_id)s AND NOT c.live AND p.stopped_at IS NULL AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
FOR NO KEY UPDATE OF c SKIP LOCKED
