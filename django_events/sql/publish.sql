-- Publish one event: put it into the buffer and wake the transfer if it sleeps.
--
-- The function looks the topic up, inserts and rings in one round trip, and PostgreSQL keeps its
-- plans for the session: it costs what a bare INSERT does, also through a pooler, where
-- prepared statements are not to be had.
-- Parameters: topic, value, type, key, body, metadata, partition, wake (null: decide by the server).
-- Relies on: django_events_topic (name).
SELECT django_events_publish(
    %(topic)s, %(value)s, %(type)s, %(key)s, %(body)s, %(metadata)s, %(partition)s, %(wake)s
)
