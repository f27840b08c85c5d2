-- Delete samples that are too old, the oldest first.
--
-- Parameters: age (an interval), limit. Answers with a row for each.
-- Relies on: the primary key of django_events_sample.
DELETE FROM django_events_sample AS s
USING (
    SELECT at
    FROM django_events_sample
    WHERE at < statement_timestamp() - %(age)s::interval
    ORDER BY at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE s.at = old.at
RETURNING s.at
