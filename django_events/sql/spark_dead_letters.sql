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
