-- name: retry_deliveries
-- Let deliveries of a queue consumer that failed be tried again now, their attempts counted anew.
--
-- They are locked in the order of their events, as by everybody who locks several and waits.
-- Parameters: consumer_id, event_id (null for all). Answers with how many.
-- Relies on: django_events_delivery (consumer_id, visible_at) WHERE visible_at IS NOT NULL, and its primary key.
WITH waiting AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s AND d.visible_at IS NOT NULL AND d.attempts > 0 AND d.token IS NULL
        AND (%(event_id)s::bigint IS NULL OR d.event_id = %(event_id)s::bigint)
    ORDER BY d.event_id
    FOR UPDATE
),
again AS (
    UPDATE django_events_delivery AS d SET visible_at = clock_timestamp(), attempts = 0, error = ''
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(ARRAY(SELECT waiting.event_id FROM waiting))
        AND d.event_id >= (SELECT min(waiting.event_id) FROM waiting)
        AND d.event_id <= (SELECT max(waiting.event_id) FROM waiting)
    RETURNING d.event_id
)
SELECT count(*) FROM again
