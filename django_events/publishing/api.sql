-- name: cancel
-- Delete a scheduled event that was not published yet.
--
-- Parameters: topic, ticket. Answers with a row if there was one.
-- Relies on: the primary key of django_events_scheduledevent.
DELETE FROM django_events_scheduledevent AS s
USING django_events_topic AS t
WHERE s.id = %(ticket)s AND t.id = s.topic_id AND t.name = %(topic)s
RETURNING s.id
