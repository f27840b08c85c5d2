-- Have the position of a queue consumer for oneself, to move it up; nothing if it can't move, or somebody else is at it.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery.
SELECT p.position
FROM django_events_position AS p
WHERE p.consumer_id = %(consumer_id)s
    AND p.partition = -1
    AND (
        SELECT d.event_id
        FROM django_events_delivery AS d
        WHERE d.consumer_id = %(consumer_id)s AND d.event_id > p.position
        ORDER BY d.event_id
        LIMIT 1
    ) > p.position + 1
FOR NO KEY UPDATE OF p SKIP LOCKED
