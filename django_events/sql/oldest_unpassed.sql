-- How long the oldest event waits that a consumer has not passed yet, filtered ones included; null if there is none.
--
-- Literals: consumer_id. Identifiers: log. Parts: events (which events `e` are in the partition of `p`).
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of the log.
SELECT {consumer_id} AS consumer_id, clock_timestamp() - min(next.logged_at)
FROM django_events_position AS p
CROSS JOIN LATERAL (
    SELECT e.logged_at FROM {log} AS e WHERE {events} AND e.id > p.position ORDER BY e.id LIMIT 1
) AS next
WHERE p.consumer_id = {consumer_id}
