-- Count an attempt at a delivery before it starts, so that it counts also if the handler ends its process.
--
-- The commit waits for the disk.
-- Parameters: consumer_id, event_id, token.
-- Relies on: the primary key of django_events_delivery.
UPDATE django_events_delivery
SET attempts = attempts + 1
WHERE consumer_id = %(consumer_id)s AND event_id = %(event_id)s AND token = %(token)s
RETURNING attempts,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END
