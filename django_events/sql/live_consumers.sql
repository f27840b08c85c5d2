-- The queue consumers of some topics that get a delivery with each event.
--
-- Parameters: topic_ids.
-- Relies on: django_events_consumer (topic_id) WHERE live.
SELECT id, topic_id, name FROM django_events_consumer WHERE live AND topic_id = ANY(%(topic_ids)s::int[]) ORDER BY id
