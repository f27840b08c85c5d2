-- name: ready
-- Whether a session could publish: it may write, and there is what publishing goes through.
--
-- Relies on: the catalog's own indexes.
SELECT
    current_setting('transaction_read_only'),
    to_regclass('django_events_topic') IS NOT NULL
        AND to_regclass('django_events_bufferedevent') IS NOT NULL
        AND to_regproc('django_events_publish') IS NOT NULL


-- name: names_of_topics
-- The names of the topics that the database has.
--
-- Relies on: nothing; it is a row for each topic.
SELECT name FROM django_events_topic


-- name: oldest_waiting
-- For how many seconds the oldest event has been in the buffer; null where it is empty.
--
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT extract(epoch FROM clock_timestamp() - min(oldest.published_at))
FROM django_events_topic AS t
CROSS JOIN LATERAL (
    SELECT b.published_at FROM django_events_bufferedevent AS b WHERE b.topic_id = t.id ORDER BY b.id LIMIT 1
) AS oldest
