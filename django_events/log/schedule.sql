-- name: publish_due
-- Move scheduled events whose time has come into the buffer, in the order of their times.
--
-- One transfer at a time: two would mix up what each of them took. What another session has locked, to cancel it, is left.
-- Parameters: lock, scheduled_from (a time), ahead (how much earlier than due), limit. Answers with how many events
-- they are, and the time of the last one.
-- Relies on: django_events_scheduled_due (publish_at, id).
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(%(lock)s) AS ours
),
due AS MATERIALIZED (
    SELECT s.id
    FROM django_events_scheduledevent AS s
    WHERE (SELECT ours FROM turn)
        AND s.publish_at >= %(scheduled_from)s::timestamptz
        AND s.publish_at <= statement_timestamp() + %(ahead)s::interval
    ORDER BY s.publish_at, s.id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM django_events_scheduledevent AS s
    USING due
    WHERE s.id = due.id
    RETURNING s.*
),
published AS (
    INSERT INTO django_events_bufferedevent ({buffered_columns})
    SELECT {buffered_columns}
    FROM taken
    ORDER BY publish_at, id
)
SELECT count(*), max(publish_at)::text FROM taken
