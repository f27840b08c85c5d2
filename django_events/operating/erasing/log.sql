-- name: erasable_ids
-- Which of some ids a topic's log has, and whether they were erased before.
--
-- Literals: topic_id, first, last. Identifiers: log. Parameters: ids.
-- Relies on: the primary key of the log.
SELECT e.id, e.value IS NULL AND e.body IS NULL AS erased
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id <= {last} AND e.id = ANY(%(ids)s::bigint[])
ORDER BY e.id


-- name: erasable
-- The next events of a key in a topic's log, behind an id and up to another, and whether they were erased before.
--
-- Literals: topic_id, after, upper, most. Identifiers: log. Parameters: key.
-- Relies on: (key, id) of a log with a timeline; elsewhere the bounds are near each other, and are read through.
SELECT e.id, e.value IS NULL AND e.body IS NULL AS erased
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
ORDER BY e.id
LIMIT {most}


-- name: erase_events
-- Blank events of a topic's log. Their ids, partitions, numbers, types and times stay. Answers with how many.
--
-- About the topic's own table: the trigger that forbids changes is on the root. What was erased before is left as it
-- is, unless its key is to go now. An event without value and without body is an erased one: none is published so.
-- Literals: topic_id, first, last. Identifiers: log. Parameters: ids, new_key (null to keep the key).
-- Relies on: the primary key of the log.
WITH erased AS (
    UPDATE {log} AS e
    SET
        key = coalesce(%(new_key)s, e.key), value = NULL, body = NULL,
        metadata = CASE
            WHEN e.value IS NULL AND e.body IS NULL THEN e.metadata
            ELSE jsonb_build_object('erased', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        END
    WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id <= {last} AND e.id = ANY(%(ids)s::bigint[])
        AND (e.value IS NOT NULL OR e.body IS NOT NULL OR e.key <> %(new_key)s)
    RETURNING 1
)
SELECT count(*) FROM erased
