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
