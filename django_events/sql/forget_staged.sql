-- Delete what tasks of Spark staged long ago and nobody published: their driver is gone.
--
-- Parameters: age (an interval), limit. Answers with a row for each.
-- Relies on: django_events_staged_age (staged_at), the primary key of django_events_stagedevent.
DELETE FROM django_events_stagedevent AS s
USING (
    SELECT id
    FROM django_events_stagedevent
    WHERE staged_at < statement_timestamp() - %(age)s::interval
    ORDER BY staged_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE s.id = old.id
RETURNING s.id
