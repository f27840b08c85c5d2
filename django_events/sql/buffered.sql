-- How many events are in the buffer, counted up to a limit and one more, and for how long the oldest has been there.
--
-- Parameters: most.
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT FROM django_events_bufferedevent AS b ORDER BY b.topic_id, b.id LIMIT %(most)s::bigint + 1
        ) AS event
    ),
    (
        SELECT clock_timestamp() - min(oldest.published_at)
        FROM django_events_topic AS t
        CROSS JOIN LATERAL (
            SELECT b.published_at FROM django_events_bufferedevent AS b WHERE b.topic_id = t.id ORDER BY b.id LIMIT 1
        ) AS oldest
    )
