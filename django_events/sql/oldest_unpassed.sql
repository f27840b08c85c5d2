-- For how long the oldest event of a topic waits that streams have not passed yet, filtered ones included; of those that
-- have one.
--
-- Literals: consumer_ids (an array), topic_id, lowest, highest (of the partitions that their positions are in).
-- Identifiers: log. Parts: events (which events `e` are in the partition of `p`).
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of the log.
SELECT p.consumer_id, clock_timestamp() - min(next.logged_at)
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
CROSS JOIN LATERAL (
    SELECT e.logged_at FROM {log} AS e WHERE {events} AND e.id > p.position ORDER BY e.id LIMIT 1
) AS next
WHERE c.id = ANY({consumer_ids}::int[])
    AND c.topic_id = {topic_id}
    AND c.mode <> 'queue'
    AND p.partition BETWEEN {lowest} AND {highest}
GROUP BY p.consumer_id
