-- name: spark_dead_letters
-- All dead letters, for jobs. Where JSON of one is not made into text, its metadata say so.
--
-- Parts: value, metadata (as text, or null), unreadable (JSON).
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT
    c.name AS consumer, t.name AS topic, d.event_id AS "offset", d.partition, d.type, d.key, d.value_text AS value, d.body,
    CASE
        WHEN d.metadata_text IS NULL THEN {unreadable}
        WHEN d.value IS NULL OR d.value_text IS NOT NULL THEN d.metadata_text
        ELSE (d.metadata || {unreadable}::jsonb)::text
    END AS metadata,
    d.published_at, d.logged_at AS timestamp, d.attempts, d.error, d.dead_at, d.redrive_at
FROM (
    SELECT d.*, {value} AS value_text, {metadata} AS metadata_text
    FROM django_events_deadletter AS d
    OFFSET 0
) AS d
JOIN django_events_consumer AS c ON c.id = d.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id


-- name: spark_history
-- What queue consumers have processed, as far as they keep their history, for jobs.
--
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT
    c.name AS consumer, t.name AS topic, d.event_id AS "offset", d.received_at, d.first_at, d.last_at,
    d.processed_at, d.attempts, d.delivered, d.outcome, d.worker
FROM django_events_pastdelivery AS d
JOIN django_events_consumer AS c ON c.id = d.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id


-- name: spark_samples
-- How far each consumer was, minute by minute, for jobs. Consumers that are gone, and minutes in which the log could not
-- be read, are left out.
--
-- Relies on: the primary key of django_events_consumer.
SELECT
    c.name AS consumer, t.name AS topic, c.mode, s.taken_at AS sampled_at,
    (one.counts ->> 0)::bigint AS lag, (one.counts ->> 4)::float8 AS behind
FROM django_events_sample AS s
CROSS JOIN LATERAL jsonb_each(s.consumers) AS one (consumer_id, counts)
JOIN django_events_consumer AS c ON c.id = one.consumer_id::int
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE one.counts ->> 4 IS NOT NULL


-- name: spark_positions
-- How far each consumer is, and how many events it has before it, for jobs.
--
-- That of a queue is what it has not processed: its deliveries, and what is to be made deliveries yet.
-- Relies on: the primary key of the log and its (partition, id); those of django_events_topic, django_events_topichead
-- and django_events_delivery.
SELECT
    c.name AS consumer, t.name AS topic, c.mode, p.partition, p.position,
    CASE
        WHEN c.mode = 'queue' THEN
            (SELECT count(*) FROM django_events_delivery AS d WHERE d.consumer_id = c.id)
            + CASE WHEN c.live THEN 0 ELSE greatest(coalesce(log.id, h.id_floor) - c.filled_until, 0) END
        WHEN p.partition = -1 THEN greatest(coalesce(log.id, h.id_floor) - p.position, 0)
        ELSE greatest(coalesce(part.number, 0) - p.number, 0)
    END AS lag,
    p.handled, p.failed, p.ignored, p.dead_lettered, p.served_at
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
JOIN django_events_topichead AS h ON h.topic_id = c.topic_id
LEFT JOIN LATERAL (
    SELECT e.id FROM django_events_event AS e WHERE e.topic_id = c.topic_id ORDER BY e.id DESC LIMIT 1
) AS log ON true
LEFT JOIN LATERAL (
    SELECT e.number
    FROM django_events_event AS e
    WHERE p.partition >= 0 AND e.topic_id = c.topic_id AND e.partition = p.partition
    ORDER BY e.id DESC
    LIMIT 1
) AS part ON true
ORDER BY c.name, t.name, p.partition
