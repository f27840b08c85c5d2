-- name: pending_around
-- How many deliveries a queue consumer has up to a position, and from there to where it was given its events, and
-- which one is the oldest.
--
-- Parameters: consumer_id, position, given (an id).
-- Relies on: the primary key of django_events_delivery.
SELECT
    count(*) FILTER (WHERE event_id <= %(position)s),
    count(*) FILTER (WHERE event_id > %(position)s AND event_id <= %(given)s),
    min(event_id)
FROM django_events_delivery
WHERE consumer_id = %(consumer_id)s


-- name: refill
-- Have a queue consumer go on at another offset: what is before it is left out, what is behind it and in the log comes
-- again unless it is there still; attempts are counted anew. Under the topic's head, in a later statement than `stand_still`.
--
-- Parameters: consumer_id, position, filled_until, live.
-- Relies on: the primary keys of django_events_delivery and django_events_consumer.
WITH left_out AS (
    DELETE FROM django_events_delivery WHERE consumer_id = %(consumer_id)s AND event_id <= %(position)s
),
anew AS (
    UPDATE django_events_delivery SET attempts = 0, visible_at = NULL, error = ''
    WHERE consumer_id = %(consumer_id)s AND event_id > %(position)s AND attempts > 0
)
UPDATE django_events_consumer SET filled_until = %(filled_until)s, live = %(live)s WHERE id = %(consumer_id)s
RETURNING id
