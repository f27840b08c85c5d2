-- name: writers
-- The transactions that may hold an id of the buffer that is not visible yet, and since when the server counts.
--
-- A publisher holds its lock on the buffer from before it takes an id until its commit is visible
-- (prepared transactions too), so a transaction that isn't listed here has nothing to come. A crash gives
-- what is prepared another name, and makes the server count anew, also under the same postmaster: names of before mean nothing then.
-- Relies on: nothing but the lock table, the fast path included, and what the server tells every role.
SELECT coalesce(array_agg(virtualtransaction), ARRAY[]::text[]), pg_stat_get_bgwriter_stat_reset_time()
FROM pg_locks
WHERE locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = to_regclass('django_events_bufferedevent')
    AND mode = 'RowExclusiveLock'
    AND granted
