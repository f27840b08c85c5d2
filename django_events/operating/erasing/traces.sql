-- name: erasable_in_hand
-- Which events are in the hand of workers that read them before they were erased.
--
-- The deliveries are locked, so that a worker that is claiming some of them just now is waited for.
-- Parameters: consumer_ids, event_ids.
-- Relies on: the primary key of django_events_delivery.
WITH locked AS MATERIALIZED (
    SELECT d.event_id, d.token
    FROM django_events_delivery AS d
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id = ANY(%(event_ids)s::bigint[])
    ORDER BY d.consumer_id, d.event_id
    FOR NO KEY UPDATE
)
SELECT DISTINCT event_id FROM locked WHERE token IS NOT NULL


-- name: erase_deliveries
-- Forget the errors of deliveries of erased events, and their keys where those go. Answers with how many.
--
-- Parameters: consumer_ids, event_ids, new_key (null to keep the keys), keys_follow (whether the keys go later: what has
-- one is counted then).
-- Relies on: the primary key of django_events_delivery.
WITH erased AS (
    UPDATE django_events_delivery AS d
    SET error = '', key = CASE WHEN d.key IS NOT NULL THEN coalesce(%(new_key)s, d.key) END
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id = ANY(%(event_ids)s::bigint[])
        AND (d.error <> '' OR d.key <> %(new_key)s)
    RETURNING d.key
)
SELECT count(*) FROM erased WHERE erased.key IS NULL OR NOT %(keys_follow)s


-- name: erase_dead_letters
-- Blank the copies of erased events among the dead letters, with what was said about them. Answers with how many.
--
-- Parameters: consumer_ids, event_ids, new_key (null to keep the keys), error (what stands there instead).
-- Relies on: django_events_deadletter (consumer_id, event_id).
WITH erased AS (
    UPDATE django_events_deadletter AS d
    SET
        key = CASE WHEN d.key IS NOT NULL THEN coalesce(%(new_key)s, d.key) END,
        value = NULL, body = NULL, error = %(error)s, traceback = '', fingerprint = %(error)s,
        metadata = CASE
            WHEN d.value IS NULL AND d.body IS NULL THEN d.metadata
            ELSE jsonb_build_object('erased', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        END
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id = ANY(%(event_ids)s::bigint[])
        AND (
            d.value IS NOT NULL OR d.body IS NOT NULL OR d.error <> %(error)s OR d.traceback <> ''
            OR d.key <> %(new_key)s
        )
    RETURNING 1
)
SELECT count(*) FROM erased


-- name: erase_skips
-- Forget the errors that were noted when events that are erased now were skipped. Answers with how many.
--
-- Parameters: topic (its name), event_ids.
-- Relies on: people skip few events.
WITH erased AS (
    UPDATE django_events_intervention AS i
    SET details = i.details || jsonb_build_object('error', '')
    WHERE i.topic = %(topic)s AND i.action = 'skip'
        AND (i.details ->> 'event')::bigint = ANY(%(event_ids)s::bigint[])
        AND i.details ->> 'error' <> ''
    RETURNING 1
)
SELECT count(*) FROM erased


-- name: erase_answers
-- Forget what receivers of webhooks answered to erased events, which may repeat them. Answers with how many.
--
-- Parameters: consumer_ids, event_ids.
-- Relies on: django_events_webhookendpoint (consumer_id), django_events_webhookattempt_e (endpoint_id, event_id).
WITH erased AS (
    UPDATE django_events_webhookattempt AS a
    SET excerpt = ''
    FROM django_events_webhookendpoint AS w
    WHERE w.consumer_id = ANY(%(consumer_ids)s::int[]) AND a.endpoint_id = w.id
        AND a.event_id = ANY(%(event_ids)s::bigint[])
        AND a.excerpt <> ''
    RETURNING 1
)
SELECT count(*) FROM erased


-- name: erase_dropped
-- Forget the errors of deliveries of events that the log has dropped while a worker had them. Answers with how many.
--
-- Only a queue that is ordered keeps the key: of the others, all that may be of the key go.
-- Parameters: consumer_ids, first (the first id that the log has), keys.
-- Relies on: the primary key of django_events_delivery.
WITH erased AS (
    UPDATE django_events_delivery AS d
    SET error = ''
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id < %(first)s
        AND d.error <> ''
        AND (d.key IS NULL OR d.key = ANY(%(keys)s::text[]))
    RETURNING 1
)
SELECT count(*) FROM erased


-- name: erase_errors
-- Forget the last errors of consumers where they are, or may be, about an erased event. Answers with how many.
--
-- A position keeps its last error when the event was handled at last, and doesn't say any more which one it was. One
-- that stopped at a filter still says where: only what the database said of the event goes, because the filter has to be repaired.
-- Identifiers: log. Literals: topic_id. Parameters: consumer_ids, stops (what such an error begins with, a regular
-- expression), instead (what stands there instead of the database's words).
-- Relies on: django_events_position (consumer_id, partition), the primary key of the log.
WITH erasable AS (
    SELECT
        p.id,
        CASE
            WHEN p.stopped_at IS NOT NULL AND p.error ~ %(stops)s
                THEN regexp_replace(p.error, %(stops)s, %(instead)s)
            ELSE ''
        END AS error
    FROM django_events_position AS p
    WHERE p.consumer_id = ANY(%(consumer_ids)s::int[])
        AND p.error <> ''
        AND (
            p.attempted IS NULL
            OR NOT EXISTS (
                SELECT FROM {log} AS e
                WHERE e.topic_id = {topic_id} AND e.id = p.attempted AND (e.value IS NOT NULL OR e.body IS NOT NULL)
            )
        )
    FOR NO KEY UPDATE OF p
),
erased AS (
    UPDATE django_events_position AS p
    SET error = erasable.error
    FROM erasable
    WHERE p.id = erasable.id AND p.error <> erasable.error
    RETURNING 1
)
SELECT count(*) FROM erased
