-- name: sleepers
-- The sessions that hold a lock of this database alone: the LISTEN connection of a transfer that sleeps, for one.
--
-- Who may not see the sessions of others finds their pids without names.
-- Parameters: lock (the number of an advisory lock).
-- Relies on: the views of the server.
SELECT l.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'local')
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.objsubid = 1
    AND l.classid::bigint = %(lock)s::bigint >> 32
    AND l.objid::bigint = %(lock)s::bigint & 4294967295
    AND l.mode = 'ExclusiveLock'
    AND l.granted
ORDER BY l.pid
