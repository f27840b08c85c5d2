-- The transactions that may hold an id of the buffer that is not visible yet.
--
-- A publisher holds its lock on the buffer from before it takes an id until its commit is visible
-- (prepared transactions too), so whoever isn't listed here has nothing to come.
-- Relies on: nothing but the lock table; the fast path is included.
SELECT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = to_regclass('django_events_bufferedevent')
    AND mode = 'RowExclusiveLock'
    AND granted
