-- name: hold
-- As the first statement of a handler's transaction: whoever takes the lease over finds it by this lock.
--
-- It ends with the transaction, and no other transaction has to wait for it but the one that takes over. If it can't be
-- had, somebody takes over now, or a transaction of this lease was prepared and has it for as long as it is. By the
-- setting, which ends with it too, settling finds out that it is still the same transaction.
-- A site's limit for idle transactions is meant for pages: here the lease and the consumer's timeout are the limit.
-- Parameters: token.
SELECT
    pg_try_advisory_xact_lock(%(token)s),
    set_config('django_events.token', %(token)s::text, true),
    set_config('idle_in_transaction_session_timeout', '0', true)


-- name: holder_of_lease
-- The session that has the lock of a lease, see `hold`; the pid is null where it is a prepared transaction.
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


-- name: give_up
-- End leases without settling: whoever claims next goes on carefully, as after a crash.
--
-- Parameters: tokens. Answers with those that were still leases.
-- Relies on: django_events_position is small, and this is rare; the primary key of django_events_deliverylease.
WITH lanes AS (
    UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
),
hands AS (
    UPDATE django_events_deliverylease SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
)
SELECT token FROM lanes
UNION ALL
SELECT token FROM hands


-- name: wait_for_holder
-- Wait until the holder of a lost lease is gone, with its locks.
--
-- Shared: several may take over, or rewind, at the same time, and none of them is the holder.
-- Parameters: token (the lost one).
SELECT pg_advisory_xact_lock_shared(%(token)s)
