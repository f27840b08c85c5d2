-- Topics without a log or without a head, and logs without a topic.
--
-- Answers with the fault, and the topic's id and name.
-- Relies on: the catalog's own indexes, the primary keys of django_events_topic and django_events_topichead.
WITH log AS (
    SELECT
        (regexp_match(log.relname, '_(\d+)$'))[1]::int AS topic_id,
        obj_description(log.oid, 'pg_class') AS name
    FROM pg_inherits AS link
    JOIN pg_class AS log ON log.oid = link.inhrelid
    WHERE link.inhparent = to_regclass('django_events_event')
)
SELECT 'log', t.id, t.name FROM django_events_topic AS t WHERE t.id NOT IN (SELECT log.topic_id FROM log)
UNION ALL
SELECT 'head', t.id, t.name
FROM django_events_topic AS t
WHERE NOT EXISTS (SELECT FROM django_events_topichead AS h WHERE h.topic_id = t.id)
UNION ALL
SELECT 'topic', log.topic_id, log.name FROM log WHERE log.topic_id NOT IN (SELECT t.id FROM django_events_topic AS t)
ORDER BY 2
