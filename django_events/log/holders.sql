-- name: holders
-- Who keeps topics from being moved: locks on their heads, and on their logs, the root of all logs and the buffer.
--
-- The transaction that has locked a row is in its xmax, and has its own id locked. The pid is null and the kind
-- 'prepared' where it is a prepared transaction. A topic without a head is of the kind 'headless'.
-- Parameters: topic_ids. Parts: told.
-- Relies on: the views of the server, and the primary key of django_events_topichead.
WITH topic AS MATERIALIZED (
    SELECT t.id, h.topic_id IS NULL AS headless, h.xmax AS locker
    FROM unnest(%(topic_ids)s::int[]) AS t (id)
    LEFT JOIN django_events_topichead AS h ON h.topic_id = t.id
),
log AS MATERIALIZED (
    SELECT topic.id AS topic_id, to_regclass('django_events_event_' || topic.id)::oid AS oid FROM topic
    UNION ALL
    SELECT topic.id, link.inhrelid
    FROM topic
    JOIN pg_inherits AS link ON link.inhparent = to_regclass('django_events_event_' || topic.id)
    UNION ALL
    SELECT topic.id, to_regclass(shared.name)::oid
    FROM topic
    CROSS JOIN (VALUES ('django_events_event'), ('django_events_bufferedevent')) AS shared (name)
),
held AS (
    SELECT topic.id AS topic_id, 'django_events_topichead' AS name, 'FOR UPDATE' AS mode, l.pid, l.virtualtransaction
    FROM topic
    JOIN pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = topic.locker
    WHERE l.granted AND l.mode = 'ExclusiveLock'
    UNION ALL
    SELECT log.topic_id, c.relname::text, l.mode, l.pid, l.virtualtransaction
    FROM log
    JOIN pg_locks AS l ON l.locktype = 'relation' AND l.relation = log.oid
    JOIN pg_class AS c ON c.oid = log.oid
    WHERE l.granted
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
)
SELECT DISTINCT ON (found.since, found.topic_id, found.pid, found.name)
    found.topic_id, found.kind, found.relation, found.mode, found.pid, found.name, found.role, found.application,
    found.address, found.state, found.since, found.does
FROM (
    SELECT
        held.topic_id,
        CASE WHEN held.pid IS NULL THEN 'prepared' ELSE 'session' END AS kind,
        held.name AS relation, held.mode, held.pid,
        {told}
    FROM held
    LEFT JOIN pg_stat_activity AS a ON a.pid = held.pid
    LEFT JOIN pg_prepared_xacts AS x ON held.pid IS NULL AND '-1/' || x.transaction = held.virtualtransaction
    WHERE held.pid IS DISTINCT FROM pg_backend_pid()
    UNION ALL
    SELECT topic.id, 'headless', 'django_events_topichead', '', NULL, '', '', '', '', '', NULL, ''
    FROM topic
    WHERE topic.headless
) AS found
ORDER BY found.since, found.topic_id, found.pid, found.name, found.relation
