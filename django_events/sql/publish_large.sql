-- As publish.sql, for an event that is not small: the function would look through its JSON once more, which Python has done.
--
-- Parameters: topic, value, type, key, body, metadata, partition, wake (null: decide by the server).
-- Relies on: django_events_topic (name).
INSERT INTO django_events_bufferedevent (topic_id, partition, type, key, value, body, metadata)
VALUES (
    django_events_open(%(topic)s::text, %(wake)s::boolean),
    %(partition)s::integer, %(type)s::text, %(key)s::text, %(value)s::jsonb, %(body)s::bytea, %(metadata)s::jsonb
)
RETURNING id
