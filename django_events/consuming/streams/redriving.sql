-- name: count_redrive
-- Count an attempt at a dead letter before it starts, so that it is counted even if the handler ends its process.
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


-- name: drop_dead_letter
-- Delete a dead letter that was handled, or ignored.
--
-- Parameters: dead_letter_id.
-- Relies on: the primary key of django_events_deadletter.
DELETE FROM django_events_deadletter WHERE id = %(dead_letter_id)s RETURNING id


-- name: settle_redrive
-- Write down that a dead letter failed once more, to be tried again after a pause, or to stay dead.
--
-- Parameters: dead_letter_id, pause (an interval, or null), attempts, error, traceback, fingerprint.
-- Relies on: the primary key of django_events_deadletter.
UPDATE django_events_deadletter
SET redrive_at = clock_timestamp() + %(pause)s::interval, attempts = %(attempts)s, error = %(error)s, traceback = %(traceback)s,
    fingerprint = %(fingerprint)s, dead_at = CASE WHEN %(pause)s::interval IS NULL THEN clock_timestamp() ELSE dead_at END
WHERE id = %(dead_letter_id)s
RETURNING id


-- name: next_redrive
-- The next dead letter of a partition that is due to be handled again, without its event.
--
-- Parameters: position_id. Parts: redrive_due.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT d.id, d.attempts, d.event_id
FROM django_events_position AS p
JOIN django_events_deadletter AS d ON d.consumer_id = p.consumer_id
WHERE p.id = %(position_id)s AND {redrive_due}
ORDER BY d.event_id
LIMIT 1
