-- For how many seconds the oldest event has been in the buffer; null where it is empty.
--
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT extract(epoch FROM clock_timestamp() - min(oldest.published_at))
FROM django_events_topic AS t
CROSS JOIN LATERAL (
    SELECT b.published_at FROM django_events_bufferedevent AS b WHERE b.topic_id = t.id ORDER BY b.id LIMIT 1
) AS oldest
