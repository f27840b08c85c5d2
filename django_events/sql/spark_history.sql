-- What queue consumers have processed, as far as they keep their history, for jobs.
--
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT
    c.name AS consumer, t.name AS topic, d.event_id AS "offset", d.received_at, d.first_at, d.last_at,
    d.processed_at, d.attempts, d.delivered, d.outcome, d.worker
FROM django_events_pastdelivery AS d
JOIN django_events_consumer AS c ON c.id = d.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
