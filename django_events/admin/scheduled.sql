-- name: among_next
-- Of the events that are published next those of a key, or of a topic.
--
-- No index leads to either, so that a part of the table is looked through, and never all of it.
-- Parameters: looked_through, key, topic_id (null for any), most.
-- Relies on: django_events_scheduled_due (publish_at, id).
SELECT next.id
FROM (
    SELECT s.id, s.key, s.topic_id
    FROM django_events_scheduledevent AS s
    ORDER BY s.publish_at, s.id
    LIMIT %(looked_through)s
) AS next
WHERE (%(key)s::text IS NULL OR next.key = %(key)s) AND (%(topic_id)s::int IS NULL OR next.topic_id = %(topic_id)s)
LIMIT %(most)s
