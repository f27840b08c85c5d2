-- Move the position of a queue consumer up to its oldest delivery.
--
-- In a later statement than the one that locked it: a rewind, which makes older deliveries, takes the same lock.
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery.
UPDATE django_events_position AS p
SET position = oldest.event_id - 1
FROM (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id > (
            SELECT own.position FROM django_events_position AS own
            WHERE own.consumer_id = %(consumer_id)s AND own.partition = -1
        )
    ORDER BY d.event_id
    LIMIT 1
) AS oldest
WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1 AND oldest.event_id - 1 > p.position
RETURNING p.position
