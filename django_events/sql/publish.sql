-- Publish one event: put it into the buffer and wake the transfer if it sleeps.
--
-- The function looks the topic up, inserts and rings in one round trip, and PostgreSQL keeps its
-- plans for the session: it costs what a bare INSERT does, also through a pooler, where
-- prepared statements are not to be had. All arguments are given with their exact types: another function of this name is
-- never a better match.
-- Parameters: topic, value, type, key, body, metadata, partition, wake (null: decide by the server).
-- Relies on: django_events_topic (name).
SELECT django_events_publish(
    %(topic)s::text, %(value)s::jsonb, %(type)s::text, %(key)s::text, %(body)s::bytea, %(metadata)s::jsonb,
    %(partition)s::integer, %(wake)s::boolean
)
