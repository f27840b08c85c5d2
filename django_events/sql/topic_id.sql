-- The id of a topic.
--
-- Parameters: topic.
-- Relies on: django_events_topic (name).
SELECT id FROM django_events_topic WHERE name = %(topic)s
