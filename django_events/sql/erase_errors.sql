-- Forget the last errors of consumers where they are, or may be, about an erased event. Answers with how many.
--
-- A position keeps its last error when the event was handled at last, and doesn't say any more which one it was.
-- Identifiers: log. Literals: topic_id. Parameters: consumer_ids.
-- Relies on: django_events_position (consumer_id, partition), the primary key of the log.
WITH erased AS (
    UPDATE django_events_position AS p
    SET error = ''
    WHERE p.consumer_id = ANY(%(consumer_ids)s::int[])
        AND p.error <> ''
        AND (
            p.attempted IS NULL
            OR NOT EXISTS (
                SELECT FROM {log} AS e
                WHERE e.topic_id = {topic_id} AND e.id = p.attempted AND (e.value IS NOT NULL OR e.body IS NOT NULL)
            )
        )
    RETURNING 1
)
SELECT count(*) FROM erased
