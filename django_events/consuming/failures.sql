-- name: bury
-- Copy an event into the dead letters of a consumer: all of it, because the log may drop it, or has.
--
-- Parameters: consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at
-- (the event as it was read), attempts, error, traceback, fingerprint.
-- Relies on: django_events_deadletter (consumer_id, event_id).
INSERT INTO django_events_deadletter (
    consumer_id, event_id, {copied_columns}, attempts, error, traceback, fingerprint
)
VALUES (
    %(consumer_id)s, %(event_id)s, {copied_parameters}, %(attempts)s, %(error)s, %(traceback)s, %(fingerprint)s
)
ON CONFLICT (consumer_id, event_id) DO UPDATE
SET
    {copied_updates},
    attempts = excluded.attempts, error = excluded.error, traceback = excluded.traceback,
    fingerprint = excluded.fingerprint, dead_at = clock_timestamp(), redrive_at = NULL
RETURNING id


-- name: bury_unread
-- As `bury`, for an event whose payload was not read: the server makes the copy.
--
-- A dead letter that exists has the payload already; where retention has dropped the event, only that one is updated.
-- Literals: topic_id, event_id. Identifiers: log. Parameters: consumer_id, attempts, error, traceback, fingerprint.
-- Answers with nothing where there is neither.
-- Relies on: the primary key of the log, django_events_deadletter (consumer_id, event_id).
WITH again AS (
    UPDATE django_events_deadletter
    SET
        attempts = %(attempts)s, error = %(error)s, traceback = %(traceback)s,
        fingerprint = %(fingerprint)s, dead_at = clock_timestamp(), redrive_at = NULL
    WHERE consumer_id = %(consumer_id)s AND event_id = {event_id}
    RETURNING id
),
anew AS (
    INSERT INTO django_events_deadletter (
        consumer_id, event_id, {copied_columns}, attempts, error, traceback, fingerprint
    )
    SELECT
        %(consumer_id)s, {event_columns of e}, %(attempts)s, %(error)s, %(traceback)s, %(fingerprint)s
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id = {event_id} AND NOT EXISTS (SELECT FROM again)
    RETURNING id
)
SELECT id FROM again UNION ALL SELECT id FROM anew
