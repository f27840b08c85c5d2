-- How many deliveries a queue consumer has, counted up to `most`; while it is not live, of what it is filled with.
--
-- Parameters: consumer_id, most (null for all).
-- Relies on: the primary keys of django_events_delivery and django_events_consumer, django_events_position (consumer_id, partition).
SELECT count(*)
FROM (
    SELECT
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    JOIN django_events_delivery AS d ON d.consumer_id = c.id AND d.event_id > p.position
    WHERE c.id = %(consumer_id)s AND (c.live OR d.event_id <= c.filled_until)
    ORDER BY d.event_id
    LIMIT %(most)s::bigint
) AS pending
