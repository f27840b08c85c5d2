-- Forget the last errors of consumers where they are, or may be, about an erased event. Answers with how many.
--
-- A position keeps its last error when the event was handled at last, and doesn't say any more which one it was. One
-- that stopped at a filter still says where: only what the database said of the event goes, for somebody has to repair it.
-- Identifiers: log. Literals: topic_id. Parameters: consumer_ids, stops (what such an error begins with, a regular
-- expression), instead (what stands there instead of the database's words).
-- Relies on: django_events_position (consumer_id, partition), the primary key of the log.
WITH erasable AS (
    SELECT
        p.id,
        CASE
            WHEN p.stopped_at IS NOT NULL AND p.error ~ %(stops)s
                THEN regexp_replace(p.error, %(stops)s, %(instead)s)
            ELSE ''
        END AS error
    FROM django_events_position AS p
    WHERE p.consumer_id = ANY(%(consumer_ids)s::int[])
        AND p.error <> ''
        AND (
            p.attempted IS NULL
            OR NOT EXISTS (
                SELECT FROM {log} AS e
                WHERE e.topic_id = {topic_id} AND e.id = p.attempted AND (e.value IS NOT NULL OR e.body IS NOT NULL)
            )
        )
    FOR NO KEY UPDATE OF p
),
erased AS (
    UPDATE django_events_position AS p
    SET error = erasable.error
    FROM erasable
    WHERE p.id = erasable.id AND p.error <> erasable.error
    RETURNING 1
)
SELECT count(*) FROM erased
