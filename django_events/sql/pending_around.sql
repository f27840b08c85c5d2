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
