-- name: take_lock
-- Take the advisory lock of a lease, as the first statement of a handler's transaction.
--
-- The lock is how a worker that takes the lease over finds this transaction. It ends with the transaction, and only a
-- takeover waits for it. It can't be had while a takeover is under way, or while a prepared transaction of this lease
-- exists. The setting django_events.token ends with the transaction too, so settling can tell whether it runs in the
-- transaction that began here, or in one that a handler began after it had ended this one.
-- A site's limit for idle transactions is meant for web requests: here the lease and the consumer's timeout are the limit.
-- Parameters: token. Answers first with whether the lock was taken.
SELECT
    pg_try_advisory_xact_lock(%(token)s),
    set_config('django_events.token', %(token)s::text, true),
    set_config('idle_in_transaction_session_timeout', '0', true)


-- name: lock_holder
-- The session that has the lock of a lease, see `take_lock`; the pid is null where it is a prepared transaction.
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
-- End leases without settling: the next worker goes on carefully, as after a crash.
--
-- Parameters: tokens. Answers with those that were still leases.
-- Relies on: django_events_position is small, and this is rare; the primary key of django_events_deliverylease.
WITH partitions AS (
    UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
),
deliveries AS (
    UPDATE django_events_deliverylease SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
)
SELECT token FROM partitions
UNION ALL
SELECT token FROM deliveries


-- name: wait_for_holder
-- Wait until the transaction of a worker that lost its lease has ended, and released its locks.
--
-- The lock is shared: several sessions may take over, or rewind, at the same time, and must not wait for each other.
-- Parameters: token (the lost one).
SELECT pg_advisory_xact_lock_shared(%(token)s)
