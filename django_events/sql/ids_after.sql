-- The first ids above one of the events that have a value in a column of the log with an index: of a key or a partition.
--
-- In the order of the index, as in ids_before.sql.
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
