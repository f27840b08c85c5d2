-- How far consumers are in their partitions, and what goes on there, by name, topic and partition.
--
-- The lag of a stream is a subtraction, from where the log of each partition ends: it costs the same however long the
-- log is. That of a queue is a count of its deliveries, up to `most_pending`.
-- Parameters: consumer_ids (null for all); most_pending (null to count all); topic_ids, partitions, ends (arrays of one
-- length: the last number of each partition, and under partition -1 the last id of the topic). Parts: lanes, state.
-- Relies on: what lanes.sql does.
SELECT
    c.name, t.name, p.partition, p.position, log.ends_at AS head, p.events, p.more, {state} AS state,
    p.handled, p.failed, p.discarded, p.dead_lettered, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    p.served_at
FROM ({lanes}) AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
LEFT JOIN unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(ends)s::bigint[]) AS log (topic_id, partition, ends_at)
    ON log.topic_id = c.topic_id AND log.partition = -1
ORDER BY c.name, t.name, p.partition
