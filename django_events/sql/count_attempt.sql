-- Count an attempt before it starts, so that it counts also if the handler ends its process.
--
-- The commit waits for the disk.
-- Parameters: position_id, token, event_id, careful_until.
-- Relies on: the primary key of django_events_position.
UPDATE django_events_position
SET
    attempts = CASE WHEN attempted = %(event_id)s THEN attempts + 1 ELSE 1 END,
    attempted = %(event_id)s,
    careful_until = greatest(careful_until, %(careful_until)s)
WHERE id = %(position_id)s AND token = %(token)s
RETURNING attempts, ctid::text,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END
