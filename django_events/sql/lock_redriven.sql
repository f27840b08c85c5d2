-- Lock the deliveries of dead letters that are handled again, before the dead letters, as who settles one does.
--
-- Parameters: ids (of dead letters).
-- Relies on: the primary keys of django_events_deadletter and django_events_delivery.
SELECT d.event_id
FROM django_events_deadletter AS l
JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
WHERE l.id = ANY(%(ids)s::bigint[])
ORDER BY d.consumer_id, d.event_id
FOR UPDATE OF d
