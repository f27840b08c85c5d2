-- The deliveries of dead letters that are handled again, and whether they are free: nobody has them in hand or locked.
--
-- Those that are free are locked.
-- Parameters: ids (of dead letters).
-- Relies on: the primary keys of django_events_deadletter and django_events_delivery.
WITH free AS MATERIALIZED (
    SELECT d.consumer_id, d.event_id
    FROM django_events_deadletter AS l
    JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
    WHERE l.id = ANY(%(ids)s::bigint[]) AND d.token IS NULL
    FOR UPDATE OF d SKIP LOCKED
)
SELECT d.event_id, free.event_id IS NOT NULL
FROM django_events_deadletter AS l
JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
LEFT JOIN free ON free.consumer_id = d.consumer_id AND free.event_id = d.event_id
WHERE l.id = ANY(%(ids)s::bigint[])
ORDER BY d.event_id
