-- Blank the copies of erased events among the dead letters, with what was said about them. Answers with how many.
--
-- Parameters: consumer_ids, event_ids, new_key (null to keep the keys), error (what stands there instead).
-- Relies on: django_events_deadletter (consumer_id, event_id).
WITH erased AS (
    UPDATE django_events_deadletter AS d
    SET
        key = CASE WHEN d.key IS NOT NULL THEN coalesce(%(new_key)s, d.key) END,
        value = NULL, body = NULL, error = %(error)s, traceback = '',
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
