-- name: disk
-- How large the database is, and where the server keeps it, if this role may see that.
--
-- Relies on: the files of the database, and the views of the server.
SELECT
    pg_database_size(current_database()),
    (SELECT s.setting FROM pg_settings AS s WHERE s.name = 'data_directory'),
    extract(epoch FROM pg_postmaster_start_time())::bigint


-- name: server_load
-- How full the server is, and who has forgotten a transaction.
--
-- Parameters: age (an interval: a session is idle in its transaction for longer).
-- Relies on: the views of the server, and the catalog.
SELECT
    (SELECT count(*) FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS connections,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS for_all,
    (
        SELECT count(*)
        FROM pg_stat_activity AS a
        WHERE a.datname = current_database()
            AND a.state LIKE 'idle in transaction%%'
            AND a.state_change < clock_timestamp() - %(age)s::interval
    ) AS forgotten,
    (
        SELECT count(*)
        FROM pg_class AS c
        WHERE starts_with(c.relname, 'django_events_event') AND c.relkind IN ('r', 'p', 'i', 'I')
    ) AS of_logs,
    current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int) AS locks,
    pg_is_in_recovery() AS standby,
    current_setting('server_encoding') AS encoding
