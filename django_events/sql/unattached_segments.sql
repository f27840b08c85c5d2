-- Tables that are named like segments of a log and are not attached to it.
--
-- Parameters: log (a table's name), like (how names of segments begin, as a pattern of LIKE).
-- Relies on: the catalog's own indexes.
SELECT segment.relname, (regexp_match(segment.relname, '_(\d+)$'))[1]::bigint AS first
FROM pg_class AS segment
WHERE segment.relname LIKE %(like)s
    AND segment.relname ~ '_\d+$'
    AND segment.relkind = 'r'
    AND segment.relnamespace = (SELECT log.relnamespace FROM pg_class AS log WHERE log.oid = to_regclass(%(log)s))
    AND NOT EXISTS (
        SELECT FROM pg_inherits AS link WHERE link.inhrelid = segment.oid AND NOT link.inhdetachpending
    )
ORDER BY first
