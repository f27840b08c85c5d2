-- name: drop_table
-- Drop the log of a topic, or one segment of it.
--
-- All readers and writers of what it is attached to are locked out meanwhile, so ask for the lock for a moment only.
-- Identifiers: table.
DROP TABLE IF EXISTS {table}


-- name: drop_buffered
-- Delete some of the events of one topic from the buffer; answers with how many.
--
-- Parameters: topic_id, most.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH gone AS (
    DELETE FROM django_events_bufferedevent AS b
    WHERE b.topic_id = %(topic_id)s
        AND b.id = ANY(
            ARRAY(
                SELECT o.id FROM django_events_bufferedevent AS o
                WHERE o.topic_id = %(topic_id)s
                ORDER BY o.id
                LIMIT %(most)s
            )
        )
    RETURNING b.id
)
SELECT count(*) FROM gone
