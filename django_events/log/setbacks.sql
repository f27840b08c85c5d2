-- name: note_failure
-- Write down why a topic can't be moved into its log, or, with an empty failure, that it is moved again.
--
-- It fails since the first time, however often the reason changes.
-- Parameters: topic_id, failure (an SQLSTATE, or 'head' where the topic has lost its head), error.
-- Relies on: the primary key of django_events_topic.
UPDATE django_events_topic
SET
    failure = %(failure)s,
    error = %(error)s,
    failing_since = CASE WHEN %(failure)s <> '' THEN coalesce(failing_since, clock_timestamp()) END
WHERE id = %(topic_id)s AND (failure, error) IS DISTINCT FROM (%(failure)s, %(error)s)
RETURNING id
