-- Count an attempt at a dead letter before it starts, so that it counts also if the handler ends its process.
--
-- Parameters: dead_letter_id, position_id, token.
-- Relies on: the primary keys of django_events_deadletter and django_events_position.
UPDATE django_events_deadletter AS d
SET attempts = d.attempts + 1
FROM django_events_position AS p
WHERE d.id = %(dead_letter_id)s AND d.redrive_at IS NOT NULL
    AND p.id = %(position_id)s AND p.token = %(token)s
RETURNING d.attempts,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END
