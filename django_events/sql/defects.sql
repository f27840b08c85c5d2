-- What is wrong with tables and indexes of ours: segments that were detached halfway, unlogged tables, invalid indexes, and
-- a log or a buffer whose primary key was dropped.
--
-- Relies on: the catalog.
WITH ours AS MATERIALIZED (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence
    FROM pg_class AS c
    WHERE c.relnamespace = (SELECT t.relnamespace FROM pg_class AS t WHERE t.oid = to_regclass('django_events_topic'))
        AND starts_with(c.relname, 'django_events_')
        AND c.relkind IN ('r', 'p')
)
SELECT 'detached' AS kind, segment.relname::text AS name, log.relname::text AS of
FROM pg_inherits AS link
JOIN ours AS segment ON segment.oid = link.inhrelid
JOIN ours AS log ON log.oid = link.inhparent
WHERE link.inhdetachpending
UNION ALL
SELECT 'unlogged', ours.relname::text, '' FROM ours WHERE ours.relpersistence = 'u'
UNION ALL
SELECT 'invalid', x.relname::text, ours.relname::text
FROM ours
JOIN pg_index AS i ON i.indrelid = ours.oid
JOIN pg_class AS x ON x.oid = i.indexrelid
WHERE NOT (i.indisvalid AND i.indisready)
UNION ALL
SELECT 'keyless', ours.relname::text, ''
FROM ours
WHERE ours.relname IN ('django_events_event', 'django_events_bufferedevent')
    AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = ours.oid AND i.indisprimary)
ORDER BY kind, name
