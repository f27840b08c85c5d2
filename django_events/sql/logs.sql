-- The logs that are attached to the root, by the id of their topic, with the name in their comment.
--
-- Relies on: the catalog's own indexes.
SELECT
    (regexp_match(log.relname, '_(\d+)$'))[1]::int AS topic_id,
    obj_description(log.oid, 'pg_class') AS name
FROM pg_inherits AS link
JOIN pg_class AS log ON log.oid = link.inhrelid
WHERE link.inhparent = to_regclass('django_events_event')
