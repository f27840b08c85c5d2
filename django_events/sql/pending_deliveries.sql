-- How many deliveries a queue consumer has, counted up to `most`.
--
-- Parameters: consumer_id, most (null for all).
-- Relies on: the primary key of django_events_delivery, django_events_position (consumer_id, partition).
SELECT count(*)
FROM (
    SELECT
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id > (
            SELECT p.position FROM django_events_position AS p WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1
        )
    ORDER BY d.event_id
    LIMIT %(most)s::bigint
) AS pending
