-- The attached segments of topics' logs with their bounds, in order.
--
-- One that is dropped in this moment may still be in the catalog, and has no bounds any more.
-- Parameters: logs (names of tables).
-- Relies on: the catalog's own indexes.
SELECT log.name, segment.relname, bounds.parts[1]::bigint AS first, bounds.parts[2]::bigint AS "end"
FROM unnest(%(logs)s::text[]) AS log (name)
JOIN pg_inherits AS link ON link.inhparent = to_regclass(log.name) AND NOT link.inhdetachpending
JOIN pg_class AS segment ON segment.oid = link.inhrelid
CROSS JOIN LATERAL (
    SELECT regexp_match(pg_get_expr(segment.relpartbound, segment.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)') AS parts
) AS bounds
WHERE bounds.parts IS NOT NULL
ORDER BY log.name, first
