-- name: bury
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


-- name: bury_unread
-- As `bury`, for an event that nobody read: its copy is made inside the server.
--
-- A dead letter that is there already has it, and is all there is where the log has dropped the event.
-- Literals: topic_id, event_id. Identifiers: log. Parameters: consumer_id, attempts, error, traceback.
-- Answers with nothing where there is neither.
-- Relies on: the primary key of the log, django_events_deadletter (consumer_id, event_id).
WITH again AS (
    UPDATE django_events_deadletter
    SET
        attempts = %(attempts)s, error = %(error)s, traceback = %(traceback)s,
        dead_at = clock_timestamp(), redrive_at = NULL
    WHERE consumer_id = %(consumer_id)s AND event_id = {event_id}
    RETURNING id
),
anew AS (
    INSERT INTO django_events_deadletter (
        consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at,
        attempts, error, traceback
    )
    SELECT
        %(consumer_id)s, e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at,
        e.logged_at, %(attempts)s, %(error)s, %(traceback)s
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id = {event_id} AND NOT EXISTS (SELECT FROM again)
    RETURNING id
)
SELECT id FROM again UNION ALL SELECT id FROM anew
