-- The session that has the lock of a lease, see hold.sql; the pid is null where it is a prepared transaction.
--
-- Parameters: token.
-- Answers with the pid, and the name of the prepared transaction.
-- Relies on: nothing but the views of the server.
SELECT l.pid, coalesce(x.gid, '')
FROM pg_locks AS l
LEFT JOIN pg_prepared_xacts AS x ON l.pid IS NULL AND '-1/' || x.transaction = l.virtualtransaction
WHERE l.locktype = 'advisory'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.classid::bigint = %(token)s::bigint >> 32
    AND l.objid::bigint = %(token)s::bigint & 4294967295
    AND l.objsubid = 1
    AND l.mode = 'ExclusiveLock'
    AND l.granted
    AND l.pid IS DISTINCT FROM pg_backend_pid()
