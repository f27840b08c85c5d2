-- Let deliveries of a queue consumer that failed be tried again now, their attempts counted anew.
--
-- Parameters: consumer_id, event_id (null for all). Answers with how many.
-- Relies on: django_events_delivery (consumer_id, visible_at) WHERE visible_at IS NOT NULL, and its primary key.
WITH again AS (
    UPDATE django_events_delivery SET visible_at = clock_timestamp(), attempts = 0, error = ''
    WHERE consumer_id = %(consumer_id)s AND visible_at IS NOT NULL AND attempts > 0 AND token IS NULL
        AND (%(event_id)s::bigint IS NULL OR event_id = %(event_id)s::bigint)
    RETURNING event_id
)
SELECT count(*) FROM again
