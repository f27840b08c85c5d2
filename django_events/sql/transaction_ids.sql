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
