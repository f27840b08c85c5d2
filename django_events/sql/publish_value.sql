-- As publish.sql, for the event that most events are: a value with a type and a key, and nothing else.
--
-- Parameters: topic, value, type, key.
-- Relies on: django_events_topic (name).
SELECT django_events_publish(%(topic)s, %(value)s, %(type)s, %(key)s)
