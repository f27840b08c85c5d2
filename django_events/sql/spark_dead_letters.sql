-- All dead letters, for jobs.
--
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT
    c.name AS consumer, t.name AS topic, d.event_id AS "offset", d.partition, d.type, d.key, d.value::text AS value, d.body,
    d.metadata::text AS metadata, d.published_at, d.logged_at AS timestamp,
    d.attempts, d.error, d.dead_at, d.redrive_at
FROM django_events_deadletter AS d
JOIN django_events_consumer AS c ON c.id = d.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
