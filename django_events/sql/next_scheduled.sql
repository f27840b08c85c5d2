-- The scheduled event that is due next, and for how long it has been due.
--
-- Plain SQL may have said a time that no client reads, like infinity.
-- Relies on: django_events_scheduled_due (publish_at, id).
SELECT t.name, s.publish_at, statement_timestamp() - s.publish_at
FROM django_events_scheduledevent AS s
JOIN django_events_topic AS t ON t.id = s.topic_id
WHERE s.publish_at BETWEEN '1900-01-01' AND '9000-01-01'
ORDER BY s.publish_at, s.id
LIMIT 1
