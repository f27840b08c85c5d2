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
