-- The next dead letter that a partition's consumer handles again, without its event.
--
-- Parameters: position_id. Parts: redrive_due.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT d.id, d.attempts, d.event_id
FROM django_events_position AS p
JOIN django_events_deadletter AS d ON d.consumer_id = p.consumer_id
WHERE p.id = %(position_id)s AND {redrive_due}
ORDER BY d.event_id
LIMIT 1
