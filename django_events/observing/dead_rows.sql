-- name: holding_back
-- Who keeps dead rows from being cleaned up, the longest first: transactions of this database and replication slots.
--
-- A session holds them back with its snapshot or its transaction id; a vacuum doesn't. A slot doesn't tell since when
-- it needs what it needs, so it is there, without a time, if that is older than a sample that is old enough. Who may
-- not see the sessions of others finds only those of his own role.
-- Parameters: age (an interval; what is younger is left out), limit.
-- Relies on: the views of the server, and the primary key of django_events_sample.
SELECT
    holder.kind, holder.name, holder.role, holder.application, holder.since, clock_timestamp() - holder.since AS held_for
FROM (
    SELECT
        'session' AS kind, a.pid::text AS name, a.usename::text AS role, a.application_name AS application,
        a.xact_start AS since
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database()
        AND a.pid <> pg_backend_pid()
        AND a.backend_type <> 'autovacuum worker'
        AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
        AND a.xact_start < clock_timestamp() - %(age)s::interval
        AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.pid = a.pid)
    UNION ALL
    SELECT 'prepared', x.gid, x.owner::text, '', x.prepared
    FROM pg_prepared_xacts AS x
    WHERE x.database = current_database() AND x.prepared < clock_timestamp() - %(age)s::interval
    UNION ALL
    SELECT 'slot', s.slot_name::text, '', '', NULL
    FROM pg_replication_slots AS s
    WHERE greatest(age(s.xmin), age(s.catalog_xmin)) >= (
        SELECT age(sample.xmin)
        FROM django_events_sample AS sample
        WHERE sample.at < statement_timestamp() - %(age)s::interval
        ORDER BY sample.at DESC
        LIMIT 1
    )
) AS holder
ORDER BY holder.since NULLS LAST
LIMIT %(limit)s


-- name: dead_rows
-- The tables whose rows come and go all the time, where dead rows pile up, and when they were cleaned last.
--
-- One that is being cleaned just now is left out.
-- Parameters: least (dead rows), times (as many as live ones).
-- Relies on: the statistics of the server.
SELECT
    s.relname::text, s.n_dead_tup, s.n_live_tup, greatest(s.last_vacuum, s.last_autovacuum) AS cleaned_at,
    clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum) AS cleaned_before
FROM pg_stat_all_tables AS s
WHERE s.relid = ANY(ARRAY[
        to_regclass('django_events_bufferedevent'),
        to_regclass('django_events_delivery'),
        to_regclass('django_events_position')
    ]::oid[])
    AND s.n_dead_tup >= %(least)s
    AND s.n_dead_tup >= %(times)s * s.n_live_tup
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS v WHERE v.relid = s.relid)
ORDER BY s.n_dead_tup DESC
