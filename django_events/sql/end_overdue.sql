-- End the transactions of workers whose leases are over, where somebody waits for their locks.
--
-- Whoever takes such a lease over ends them too. But all workers may be waiting, so that nobody is free to.
-- Answers with a row for each that was found, and whether it could be told to end.
-- Relies on: django_events_position and django_events_deliverylease are small, and a lease that is over is rare.
-- hold.sql took the lock.
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
