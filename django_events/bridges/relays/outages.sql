-- name: failing_since
-- Since when nothing of a partition can be sent, as a worker has settled it, or null; the event that waits for its next
-- attempt, or null; and the time. Both times are in seconds.
--
-- Parameters: consumer, topic (names), partition.
-- Relies on: django_events_consumer (name, topic_id), django_events_position (consumer_id, partition).
SELECT extract(epoch FROM p.failing_since), p.attempted, extract(epoch FROM clock_timestamp())
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE c.name = %(consumer)s AND t.name = %(topic)s AND p.partition = %(partition)s
