-- Forget the errors that were noted when somebody skipped events that are erased now. Answers with how many.
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
