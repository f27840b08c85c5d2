-- name: next_waiting
-- Up to which ticket the next events of a topic go that wait in a table: in the buffer, scheduled or staged.
--
-- Literals: topic_id, after, most. Identifiers: table. Answers with null if there are no more.
-- Relies on: the primary key of the table.
SELECT max(waits.id) FROM (
    SELECT e.id FROM {table} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} ORDER BY e.id LIMIT {most}
) AS waits


-- name: erasable_waiting
-- The next events of a key that wait in a table and are not erased yet, or whose key is to go.
--
-- Literals: topic_id, after, upper, most. Identifiers: table. Parameters: key, new_key (null to keep the key).
-- Relies on: the primary key of the table.
SELECT e.id
FROM {table} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
    AND (e.value IS NOT NULL OR e.body IS NOT NULL OR %(new_key)s::text IS NOT NULL)
ORDER BY e.id
LIMIT {most}


-- name: erase_waiting
-- Blank events of a key that wait in a table: in the buffer, scheduled or staged. Answers with how many.
--
-- A transfer that is moving one of them just now is waited for: then it is found where it went to. Where the key goes,
-- the event still gets the partition of the others that had it.
-- Literals: topic_id, after, upper. Identifiers: table. Parameters: key, new_key (null to keep the key), partitions.
-- Relies on: the primary key of the table.
WITH erased AS (
    UPDATE {table} AS e
    SET
        partition = CASE
            WHEN %(new_key)s::text IS NULL THEN e.partition
            ELSE coalesce(e.partition, ((hashtextextended(e.key, 0) & 9223372036854775807) %% %(partitions)s)::int)
        END,
        key = coalesce(%(new_key)s, e.key), value = NULL, body = NULL,
        metadata = CASE
            WHEN e.value IS NULL AND e.body IS NULL THEN e.metadata
            ELSE jsonb_build_object('erased', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        END
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
        AND (e.value IS NOT NULL OR e.body IS NOT NULL OR %(new_key)s::text IS NOT NULL)
    RETURNING 1
)
SELECT count(*) FROM erased
