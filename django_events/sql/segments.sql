-- The attached segments of a topic's log with their bounds, in order.
--
-- One that is dropped in this moment may still be in the catalog, and has no bounds any more.
-- Parameters: log (a table's name).
-- Relies on: the catalog's own indexes.
SELECT segment.relname, bounds.parts[1]::bigint AS first, bounds.parts[2]::bigint AS "end"
FROM pg_inherits AS link
JOIN pg_class AS segment ON segment.oid = link.inhrelid
CROSS JOIN LATERAL (
    SELECT regexp_match(pg_get_expr(segment.relpartbound, segment.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)') AS parts
) AS bounds
WHERE link.inhparent = to_regclass(%(log)s) AND NOT link.inhdetachpending AND bounds.parts IS NOT NULL
ORDER BY first
