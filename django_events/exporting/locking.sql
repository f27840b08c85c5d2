-- name: let_idle
-- Let this transaction stay open while nothing is asked in it: it holds a lock and no snapshot. A client that says nothing
-- is asked whether it is there, and the session of one whose host has vanished ends within half a minute: TCP by itself
-- takes two hours.
--
-- Relies on: pg_settings leaves out what this server doesn't have: `transaction_timeout` came with PostgreSQL 17.
SELECT set_config(s.name, wanted.setting, true)
FROM (
    VALUES
    ('idle_in_transaction_session_timeout', '0'),
    ('transaction_timeout', '0'),
    ('tcp_keepalives_idle', '10s'),
    ('tcp_keepalives_interval', '5s'),
    ('tcp_keepalives_count', '3'),
    ('tcp_user_timeout', '25s')
) AS wanted (name, setting)
INNER JOIN pg_settings AS s ON s.name = wanted.name


-- name: let_rest
-- Let this session rest while files are written: a site's limit for idle sessions is not meant for one that waits for them.
SELECT set_config('idle_session_timeout', '0', false)


-- name: lock_export
-- Be the only export to a folder until this transaction ends, or find that another one is at it.
--
-- Parameters: path.
SELECT pg_try_advisory_xact_lock(hashtextextended('django_events export ' || %(path)s, 0))
