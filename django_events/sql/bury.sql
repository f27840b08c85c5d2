-- Copy an event into the dead letters of a consumer: all of it, because the log may drop it.
--
-- Literals: topic_id, event_id. Identifiers: log. Parameters: consumer_id, attempts, error, traceback.
-- Relies on: the primary key of the log, django_events_deadletter (consumer_id, event_id).
INSERT INTO django_events_deadletter (
    consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at,
    attempts, error, traceback
)
SELECT
    %(consumer_id)s, e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at,
    e.logged_at, %(attempts)s, %(error)s, %(traceback)s
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = {event_id}
ON CONFLICT (consumer_id, event_id) DO UPDATE
SET attempts = excluded.attempts, error = excluded.error, traceback = excluded.traceback,
    dead_at = clock_timestamp(), redrive_at = NULL
RETURNING id
