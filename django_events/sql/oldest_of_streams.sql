-- For how many seconds the oldest event waits that stream consumers of a topic have not passed yet, filtered ones
-- included. A consumer without one has no row.
--
-- As oldest_unpassed.sql, for many consumers in one statement: one look by index for each partition.
-- Literals: consumer_ids (an array). Identifiers: log. Parts: events (which events `e` are in the partition of `p`).
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of the log.
SELECT p.consumer_id, extract(epoch FROM clock_timestamp() - min(next.logged_at))::float8
FROM django_events_position AS p
CROSS JOIN LATERAL (
    SELECT e.logged_at FROM {log} AS e WHERE {events} AND e.id > p.position ORDER BY e.id LIMIT 1
) AS next
WHERE p.consumer_id = ANY({consumer_ids}::int[])
GROUP BY p.consumer_id
