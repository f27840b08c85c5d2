-- As publish.sql, for the event that most events are: a value with a type and a key, and nothing else.
--
-- Parameters: topic, value, type, key.
-- Relies on: django_events_topic (name).
SELECT django_events_publish(
    %(topic)s::text, %(value)s::jsonb, %(type)s::text, %(key)s::text, NULL::bytea, pg_catalog.jsonb_build_object(),
    NULL::integer, NULL::boolean
)
