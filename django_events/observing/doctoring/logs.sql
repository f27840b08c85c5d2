-- name: lockers
-- The sessions whose locks on tables of ours keep others from writing, or from reading, one table of each.
--
-- Parameters: age (an interval; a transaction that is younger is left out).
-- Relies on: the views of the server.
SELECT DISTINCT ON (l.pid)
    l.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), c.relname::text, l.mode,
    clock_timestamp() - a.xact_start
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation
JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.granted
    AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND starts_with(c.relname, 'django_events_')
    AND l.pid <> pg_backend_pid()
    AND a.xact_start < clock_timestamp() - %(age)s::interval
ORDER BY l.pid, l.mode = 'AccessExclusiveLock' DESC, c.relname


-- name: waiting_handlers
-- The handlers that have waited for long for a lock that another session holds, on whatever table: whose they are.
--
-- A handler's transaction begins with the advisory lock of its lease, so its session is found by the token. One with
-- transactional=False has none.
-- Parameters: age (an interval), most.
-- Relies on: django_events_position and django_events_deliverylease are small; the views of the server.
SELECT c.name, t.name, hand.holder, own.pid, clock_timestamp() - awaited.waitstart AS waited
FROM (
    SELECT p.consumer_id, p.token, p.holder FROM django_events_position AS p WHERE p.token IS NOT NULL
    UNION ALL
    SELECT l.consumer_id, l.token, l.holder FROM django_events_deliverylease AS l
) AS hand
JOIN django_events_consumer AS c ON c.id = hand.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
JOIN pg_locks AS own
    ON own.locktype = 'advisory'
    AND own.granted
    AND own.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND own.classid::bigint = hand.token >> 32
    AND own.objid::bigint = hand.token & 4294967295
    AND own.objsubid = 1
JOIN pg_locks AS awaited ON awaited.pid = own.pid AND NOT awaited.granted
WHERE awaited.waitstart < clock_timestamp() - %(age)s::interval
ORDER BY awaited.waitstart
LIMIT %(most)s


-- name: defects
-- What is wrong with tables and indexes of ours: segments that were detached halfway, unlogged tables, invalid indexes
-- or ones that are not whole yet, a log or a buffer whose primary key was dropped, and row-level security, whether it hides rows from this role or not.
--
-- Of a table whose owner this role is, FORCE is what applies it.
-- Relies on: the catalog.
WITH ours AS MATERIALIZED (
    SELECT
        c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, row_security_active(c.oid) AS hides,
        pg_has_role(c.relowner, 'USAGE') AS is_mine
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
SELECT
    CASE WHEN ours.hides THEN 'hidden' ELSE 'secured' END, ours.relname::text,
    CASE WHEN ours.is_mine THEN 'NO FORCE ROW LEVEL SECURITY' ELSE 'DISABLE ROW LEVEL SECURITY' END
FROM ours
WHERE ours.relrowsecurity
UNION ALL
SELECT CASE WHEN x.relname ~ '_(timeline|partition)$' THEN 'building' ELSE 'invalid' END, x.relname::text, ours.relname::text
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
