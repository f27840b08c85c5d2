-- name: newest_of_keys
-- Hand over, for exporting/comparing_states.py, each key of a topic's log that a table of states may have a row of: 16 bytes
-- that stand for the key, and 8 with twice the id of its newest event up to `until`, and one more if the key lives by it.
--
-- In the order of these bytes, 10,000 keys in a row. Of compacted topics a key is left out if its newest event isn't known: up
-- to where a log is compacted one that a table was given may be gone, because another one came behind `until`.
-- Literals: topic_id, first, until, end (behind what is read), deletes (types of events by which their key is gone), erased
-- (a pattern of the metadata of erased events). Identifiers: log.
-- Relies on: nothing: all of it is read. What doesn't fit into work_mem is sorted on the server's disk.
COPY (
    SELECT string_agg(numbered.said, ''::bytea ORDER BY numbered.said)
    FROM (
        SELECT found.said, (row_number() OVER (ORDER BY found.said) - 1) / 10000 AS piece
        FROM (
            SELECT substring(sha256(convert_to(n.key, 'UTF8')) FOR 16) || int8send(
                max(
                    2 * n.id + CASE
                        WHEN n.type = ANY({deletes}::text[]) THEN 0
                        WHEN n.body IS NOT NULL THEN 1
                        WHEN n.value IS NULL THEN CASE WHEN n.metadata::text LIKE {erased} THEN 0 ELSE 1 END
                        WHEN pg_column_size(n.value) < 100 AND n.value = 'null'::jsonb THEN 0
                        ELSE 1
                    END
                ) FILTER (WHERE n.id < {until})
            ) AS said
            FROM {log} AS n
            WHERE n.topic_id = {topic_id} AND n.id >= {first} AND n.id < {end} AND n.key IS NOT NULL
            GROUP BY n.key
            HAVING max(n.id) < {until}
                OR max(n.id) FILTER (WHERE n.id < {until})
                > (SELECT h.compacted_until FROM django_events_topichead AS h WHERE h.topic_id = {topic_id})
        ) AS found
    ) AS numbered
    GROUP BY numbered.piece
    ORDER BY numbered.piece
) TO STDOUT (FORMAT binary)
