-- name: care
-- How tables are vacuumed: their options, and when it was done last. Also any of ours without autovacuum.
--
-- Parameters: tables.
-- Relies on: the catalog, and the statistics of the server.
SELECT c.relname::text, coalesce(c.reloptions, ARRAY[]::text[]), greatest(s.last_vacuum, s.last_autovacuum)
FROM pg_class AS c
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r'
    AND c.relnamespace = (SELECT t.relnamespace FROM pg_class AS t WHERE t.oid = to_regclass('django_events_topic'))
    AND starts_with(c.relname, 'django_events_')
    AND (
        c.relname = ANY(%(tables)s)
        OR EXISTS (
            SELECT
            FROM pg_options_to_table(c.reloptions) AS o
            WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean
        )
    )
ORDER BY c.relname


-- name: transaction_ids
-- How far the oldest transaction id of a table of ours is behind, and how far the whole database's is.
--
-- Relies on: the catalog.
SELECT
    max(age(c.relfrozenxid)),
    (SELECT age(d.datfrozenxid) FROM pg_database AS d WHERE d.datname = current_database())
FROM pg_class AS c
WHERE c.relkind = 'r'
    AND c.relnamespace = (SELECT t.relnamespace FROM pg_class AS t WHERE t.oid = to_regclass('django_events_topic'))
    AND starts_with(c.relname, 'django_events_')
