-- Queue consumers that are filled with events beyond the end of the log.
--
-- Parameters: topic_id, last_id.
-- Relies on: the primary key of django_events_consumer.
SELECT c.name, c.filled_until
FROM django_events_consumer AS c
WHERE c.topic_id = %(topic_id)s AND c.mode = 'queue' AND c.filled_until > %(last_id)s
ORDER BY c.name
