-- The queue consumers of some topics that get a delivery with each event.
--
-- Parameters: topic_ids.
-- Relies on: django_events_consumer (topic_id) WHERE live, the primary key of django_events_topic.
SELECT c.id, c.topic_id, t.name, c.name
FROM django_events_consumer AS c
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE c.live AND c.topic_id = ANY(%(topic_ids)s::int[])
ORDER BY c.id
