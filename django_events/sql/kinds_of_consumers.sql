-- The topics of these consumers, and how they look at them: what decides how their oldest events are found.
--
-- Parameters: consumer_ids.
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT DISTINCT c.topic_id, t.partitions, c.mode, c.partitioned
FROM django_events_consumer AS c
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE c.id = ANY(%(consumer_ids)s::int[])
ORDER BY c.topic_id, c.mode, c.partitioned
