-- How many segments the logs of topics have, and how large they are on disk, indexes included.
--
-- Parameters: logs (names of tables).
-- Relies on: the catalog's own indexes.
SELECT log.name, count(link.inhrelid), coalesce(sum(pg_total_relation_size(link.inhrelid)), 0)::bigint
FROM unnest(%(logs)s::text[]) AS log (name)
LEFT JOIN pg_inherits AS link ON link.inhparent = to_regclass(log.name)
GROUP BY log.name
