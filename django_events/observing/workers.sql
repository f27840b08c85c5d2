-- name: leases
-- What workers have in hand: partitions of streams, and deliveries of queues.
--
-- Of a stream the event is the one at which it is, where that is known. `served_at` is when the partition was taken; deliveries were taken when their attempt began. Each is looked up by itself: see `deliveries_of_token`.
-- Parameters: most. Parts: event_of_position, first_in_hand.
-- Relies on: django_events_position and django_events_deliverylease are small; the primary key of django_events_delivery.
SELECT
    p.holder, c.name, t.name, p.partition, {event_of_position} AS event_id, NULL::int AS events,
    p.served_at AS since, p.leased_until, p.leased_until <= clock_timestamp() AS lost, c.id, t.id
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id AND c.mode <> 'queue'
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE p.token IS NOT NULL
UNION ALL
SELECT
    l.holder, c.name, t.name, -1, hand.event_id, jsonb_array_length(l.event_ids),
    hand.since, l.leased_until, l.leased_until <= clock_timestamp(), c.id, t.id
FROM django_events_deliverylease AS l
JOIN django_events_consumer AS c ON c.id = l.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
CROSS JOIN LATERAL ({first_in_hand}) AS hand
ORDER BY since NULLS LAST
LIMIT %(most)s


-- name: waiting_sessions
-- Sessions that wait to be woken: those that hold the lock of a sleeping transfer, and those whose last statement was LISTEN.
--
-- A role that may not see the sessions of others finds only its own.
-- Parameters: lock (the number of an advisory lock), most.
-- Relies on: the views of the server.
SELECT
    a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'local'),
    a.backend_start, CASE WHEN sleeper.pid IS NULL THEN 'listens' ELSE 'transfer' END
FROM pg_stat_activity AS a
LEFT JOIN (
    SELECT DISTINCT l.pid
    FROM pg_locks AS l
    WHERE l.locktype = 'advisory'
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND l.objsubid = 1
        AND l.classid::bigint = %(lock)s::bigint >> 32
        AND l.objid::bigint = %(lock)s::bigint & 4294967295
        AND l.mode = 'ExclusiveLock'
        AND l.granted
) AS sleeper ON sleeper.pid = a.pid
WHERE a.datname = current_database()
    AND a.backend_start IS NOT NULL
    AND (sleeper.pid IS NOT NULL OR a.query LIKE 'LISTEN "django_events%%')
ORDER BY a.backend_start
LIMIT %(most)s


-- name: sees_sessions
-- Whether this role sees what the sessions of others do.
--
-- Relies on: nothing.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')


-- name: maintainers
-- The processes that ran the steps of maintenance last, the latest first.
--
-- Relies on: django_events_maintenancestep is small.
SELECT m.holder, max(m.started_at), array_agg(m.name ORDER BY m.name)
FROM django_events_maintenancestep AS m
WHERE m.finished_at IS NOT NULL OR m.leased_until IS NOT NULL
GROUP BY m.holder
ORDER BY 2 DESC
