-- Let deliveries of a queue consumer that failed be tried again now, their attempts counted anew.
--
-- Parameters: consumer_id. Answers with how many.
-- Relies on: django_events_delivery (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH again AS (
    UPDATE django_events_delivery SET visible_at = clock_timestamp(), attempts = 0, error = ''
    WHERE consumer_id = %(consumer_id)s AND visible_at IS NOT NULL AND attempts > 0 AND token IS NULL
    RETURNING event_id
)
SELECT count(*) FROM again
