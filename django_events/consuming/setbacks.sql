-- name: note_consumer_failure
-- Write down why a consumer can't be served, or, with an empty failure, that it is served again.
--
-- failing_since stays that of the first failure, however often the reason changes.
-- Parameters: consumer_id, failure (an SQLSTATE), error.
-- Relies on: the primary key of django_events_consumer.
UPDATE django_events_consumer
SET
    failure = %(failure)s,
    error = %(error)s,
    failing_since = CASE WHEN %(failure)s <> '' THEN coalesce(failing_since, clock_timestamp()) END
WHERE id = %(consumer_id)s AND (failure, error) IS DISTINCT FROM (%(failure)s, %(error)s)
RETURNING id
