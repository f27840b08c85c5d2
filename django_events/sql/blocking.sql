-- name: backend
-- The process of the server that serves this transaction, whatever is in the way to it.
--
-- Relies on: nothing.
SELECT pg_backend_pid()


-- name: blockers
-- Who keeps a session waiting for a lock, the longest first; of a prepared transaction the pid is null.
--
-- `does` is what a session began last, in a word or two: not more, because the rest may be of an event. A role that may
-- not see the statements of others gets none.
-- Parameters: pid. Parts: told.
-- Relies on: the views of the server.
SELECT
    a.pid,
    {told}
FROM unnest(pg_blocking_pids(%(pid)s::int)) AS blocker (pid)
LEFT JOIN pg_stat_activity AS a ON a.pid = blocker.pid
LEFT JOIN pg_locks AS waiting ON blocker.pid = 0 AND waiting.pid = %(pid)s::int AND NOT waiting.granted
LEFT JOIN pg_prepared_xacts AS x ON x.transaction = waiting.transactionid
ORDER BY since
