-- name: renew
-- Extend leases that are still their holders'; one that is being settled now is left out, and named as held.
--
-- Parameters: position_ids (null for the lease of a hand), tokens, leases (arrays of one length).
-- Answers with the tokens that still hold.
-- Relies on: the primary keys of django_events_position and django_events_deliverylease.
WITH mine AS MATERIALIZED (
    SELECT given.position_id, given.token, given.lease
    FROM unnest(%(position_ids)s::bigint[], %(tokens)s::bigint[], %(leases)s::interval[])
        AS given (position_id, token, lease)
),
lanes AS MATERIALIZED (
    SELECT p.id, mine.lease
    FROM mine
    JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
    FOR UPDATE OF p SKIP LOCKED
),
hands AS MATERIALIZED (
    SELECT l.token, mine.lease
    FROM mine
    JOIN django_events_deliverylease AS l ON l.token = mine.token
    WHERE mine.position_id IS NULL
    FOR UPDATE OF l SKIP LOCKED
),
renewed_lanes AS (
    UPDATE django_events_position AS p
    SET leased_until = clock_timestamp() + lanes.lease
    FROM lanes
    WHERE p.id = lanes.id
),
renewed_hands AS (
    UPDATE django_events_deliverylease AS l
    SET leased_until = clock_timestamp() + hands.lease
    FROM hands
    WHERE l.token = hands.token
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
-- End the transactions of workers whose leases are over, where somebody waits for their locks.
--
-- Whoever takes such a lease over ends them too. But all workers may be waiting, so that nobody is free to.
-- Answers with a row for each that was found, and whether it could be told to end.
-- Relies on: django_events_position and django_events_deliverylease are small, and a lease that is over is rare.
-- `hold` took the lock.
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
