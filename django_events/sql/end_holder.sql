-- End the transaction of a worker that lost its lease, so that its locks go too.
--
-- Answers with a row for each that was found, and whether it could be told to end.
-- Parameters: token (the lost one).
-- Relies on: nothing but the lock table. hold.sql took the lock; whoever waits for its end by wait_for_holder.sql
-- has it in another mode.
SELECT pid, pg_terminate_backend(pid)
FROM pg_locks
WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = %(token)s::bigint >> 32
    AND objid::bigint = %(token)s::bigint & 4294967295
    AND objsubid = 1
    AND mode = 'ExclusiveLock'
    AND granted
    AND pid <> pg_backend_pid()
