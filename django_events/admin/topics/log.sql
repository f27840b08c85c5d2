-- name: neighbours
-- The events of the same key before and after an event, in a topic with a timeline; null where there is none.
--
-- In the order of the index, which alone can answer it: a planner that takes a key for a frequent one would rather
-- read the log backwards until it comes.
-- Parameters: key, event_id. Identifiers: log.
-- Relies on: (key, id) of the log.
SELECT
    (
        SELECT near.id
        FROM (
            SELECT e.key, e.id
            FROM {log} AS e
            WHERE (e.key, e.id) < (%(key)s, %(event_id)s)
            ORDER BY e.key DESC, e.id DESC
            LIMIT 1
        ) AS near
        WHERE near.key = %(key)s
    ),
    (
        SELECT near.id
        FROM (
            SELECT e.key, e.id
            FROM {log} AS e
            WHERE (e.key, e.id) > (%(key)s, %(event_id)s)
            ORDER BY e.key, e.id
            LIMIT 1
        ) AS near
        WHERE near.key = %(key)s
    )


-- name: ids_after
-- The first ids above one of the events that have a value in a column of the log with an index: of a key or a partition.
--
-- In the order of the index, as in `ids_before`.
-- Parameters: value, id, limit. Identifiers: log, of (the column).
-- Relies on: (key, id) or (partition, id) of the log.
SELECT near.id
FROM (
    SELECT e.{of} AS value, e.id
    FROM {log} AS e
    WHERE (e.{of}, e.id) > (%(value)s, %(id)s::bigint)
    ORDER BY e.{of}, e.id
    LIMIT %(limit)s
) AS near
WHERE near.value = %(value)s


-- name: ids_before
-- The last ids below one of the events that have a value in a column of the log with an index: of a key or a partition.
--
-- In the order of the index, which alone can answer it: a planner that takes a value for a frequent one would rather
-- walk through the log until it comes, and the log may be without it.
-- Parameters: value, id, limit. Identifiers: log, of (the column).
-- Relies on: (key, id) or (partition, id) of the log.
SELECT near.id
FROM (
    SELECT e.{of} AS value, e.id
    FROM {log} AS e
    WHERE (e.{of}, e.id) < (%(value)s, %(id)s::bigint)
    ORDER BY e.{of} DESC, e.id DESC
    LIMIT %(limit)s
) AS near
WHERE near.value = %(value)s
