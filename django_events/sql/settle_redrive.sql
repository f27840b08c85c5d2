-- A dead letter failed once more: try again after a pause, or leave it dead.
--
-- Parameters: dead_letter_id, pause (an interval, or null), error, traceback.
-- Relies on: the primary key of django_events_deadletter.
UPDATE django_events_deadletter
SET redrive_at = clock_timestamp() + %(pause)s::interval, error = %(error)s, traceback = %(traceback)s,
    dead_at = CASE WHEN %(pause)s::interval IS NULL THEN clock_timestamp() ELSE dead_at END
WHERE id = %(dead_letter_id)s
RETURNING id
