-- name: renew
-- Extend leases whose token is still in their rows. A lease whose row is locked, because it is being settled, is left as it
-- is, and still named in the answer.
--
-- Parameters: position_ids (null for a lease of deliveries), tokens, leases (arrays of one length).
-- Answers with the tokens that still hold.
-- Relies on: the primary keys of django_events_position and django_events_deliverylease.
WITH mine AS MATERIALIZED (
    SELECT given.position_id, given.token, given.lease
    FROM unnest(%(position_ids)s::bigint[], %(tokens)s::bigint[], %(leases)s::interval[])
        AS given (position_id, token, lease)
),
partitions AS MATERIALIZED (
    SELECT p.id, mine.lease
    FROM mine
    JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
    FOR UPDATE OF p SKIP LOCKED
),
deliveries AS MATERIALIZED (
    SELECT l.token, mine.lease
    FROM mine
    JOIN django_events_deliverylease AS l ON l.token = mine.token
    WHERE mine.position_id IS NULL
    FOR UPDATE OF l SKIP LOCKED
),
renewed_partitions AS (
    UPDATE django_events_position AS p
    SET leased_until = clock_timestamp() + partitions.lease
    FROM partitions
    WHERE p.id = partitions.id
),
renewed_deliveries AS (
    UPDATE django_events_deliverylease AS l
    SET leased_until = clock_timestamp() + deliveries.lease
    FROM deliveries
    WHERE l.token = deliveries.token
)
SELECT p.token
FROM mine
JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
UNION ALL
SELECT l.token
FROM mine
JOIN django_events_deliverylease AS l ON l.token = mine.token
WHERE mine.position_id IS NULL


-- name: end_overdue
-- End the connections of workers whose leases are over, where other sessions wait for their locks.
--
-- A worker that takes such a lease over ends them too. But if all workers wait for those locks, none takes over.
-- Answers with a row for each connection that was found, and whether it could be told to end.
-- Relies on: django_events_position and django_events_deliverylease are small, and a lease that is over is rare.
-- `take_lock` took the lock.
SELECT l.pid, pg_terminate_backend(l.pid)
FROM (
    SELECT p.token FROM django_events_position AS p WHERE p.leased_until <= clock_timestamp()
    UNION ALL
    SELECT h.token FROM django_events_deliverylease AS h WHERE h.leased_until <= clock_timestamp()
) AS over
JOIN pg_locks AS l
    ON l.locktype = 'advisory'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = over.token >> 32
    AND l.objid::bigint = over.token & 4294967295
    AND l.objsubid = 1
    AND l.mode = 'ExclusiveLock'
    AND l.granted
WHERE EXISTS (SELECT FROM pg_locks AS w WHERE NOT w.granted AND l.pid = ANY(pg_blocking_pids(w.pid)))
