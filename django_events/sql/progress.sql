-- How far consumers are in their partitions, and what goes on there, by name, topic and partition.
--
-- The lag is a subtraction, from where the log of each partition ends: it costs the same however long the log is.
-- Parameters: consumer_ids (null for all); topic_ids, partitions, ends (arrays of one length: the last number
-- of each partition, and under partition -1 the last id of the topic). Parts: state.
-- Relies on: django_events_position (consumer_id, partition).
WITH log AS MATERIALIZED (
    SELECT l.topic_id, l.partition, l.ends_at
    FROM unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(ends)s::bigint[]) AS l (topic_id, partition, ends_at)
)
SELECT
    c.name, t.name, p.partition, p.position,
    greatest(coalesce(log.ends_at, 0) - CASE WHEN p.partition = -1 THEN p.position ELSE p.number END, 0) AS lag,
    {state} AS state,
    p.handled, p.failed, p.discarded, p.dead_lettered, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    p.served_at
FROM django_events_consumer AS c
JOIN django_events_topic AS t ON t.id = c.topic_id
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN log ON log.topic_id = c.topic_id AND log.partition = p.partition
WHERE %(consumer_ids)s::int[] IS NULL OR c.id = ANY(%(consumer_ids)s::int[])
ORDER BY c.name, t.name, p.partition
