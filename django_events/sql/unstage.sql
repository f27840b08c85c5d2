-- Delete what tasks of Spark have staged; answers with how many rows that were.
--
-- Parameters: attempts.
-- Relies on: django_events_staged_attempt (attempt, id).
WITH gone AS (
    DELETE FROM django_events_stagedevent WHERE attempt = ANY(%(attempts)s::uuid[]) RETURNING 1
)
SELECT count(*) FROM gone
