-- name: let_idle
-- Let this transaction stay open while nothing is asked in it: it holds a lock and no snapshot. A client that says nothing
-- is asked whether it is there, and the session of one whose host has vanished ends within half a minute: TCP by itself
-- takes two hours.
SELECT
    set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('tcp_keepalives_idle', '10s', true),
    set_config('tcp_keepalives_interval', '5s', true),
    set_config('tcp_keepalives_count', '3', true),
    set_config('tcp_user_timeout', '25s', true)


-- name: lock_export
-- Be the only export to a folder until this transaction ends, or find that another one is at it.
--
-- Parameters: path.
SELECT pg_try_advisory_xact_lock(hashtextextended('django_events export ' || %(path)s, 0))
