-- Copy an event into the dead letters of a consumer: all of it, because the log may drop it, or has.
--
-- Parameters: consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at
-- (the event as it was read), attempts, error, traceback.
-- Relies on: django_events_deadletter (consumer_id, event_id).
INSERT INTO django_events_deadletter (
    consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at,
    attempts, error, traceback
)
VALUES (
    %(consumer_id)s, %(event_id)s, %(partition)s, %(number)s, %(type)s, %(key)s, %(value)s::jsonb, %(body)s::bytea,
    %(metadata)s::jsonb, %(published_at)s, %(logged_at)s, %(attempts)s, %(error)s, %(traceback)s
)
ON CONFLICT (consumer_id, event_id) DO UPDATE
SET
    partition = excluded.partition, number = excluded.number, type = excluded.type, key = excluded.key,
    value = excluded.value, body = excluded.body, metadata = excluded.metadata,
    published_at = excluded.published_at, logged_at = excluded.logged_at,
    attempts = excluded.attempts, error = excluded.error, traceback = excluded.traceback,
    dead_at = clock_timestamp(), redrive_at = NULL
RETURNING id
