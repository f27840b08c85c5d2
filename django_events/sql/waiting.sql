-- What waits in the buffer: how many events of each topic, counted up to a share of `most`, and since when.
--
-- One event more than the share says that there are more. A topic without events has no row.
-- Parameters: most.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH waiting AS MATERIALIZED (
    SELECT t.id, t.name, oldest.published_at
    FROM django_events_topic AS t
    CROSS JOIN LATERAL (
        SELECT b.published_at
        FROM django_events_bufferedevent AS b
        WHERE b.topic_id = t.id
        ORDER BY b.id
        LIMIT 1
    ) AS oldest
),
share AS (
    SELECT greatest(%(most)s / greatest(count(*), 1), 1) AS size FROM waiting
)
SELECT
    waiting.name, least(counted.events, share.size), counted.events > share.size,
    waiting.published_at, clock_timestamp() - waiting.published_at, waiting.id
FROM waiting
CROSS JOIN share
CROSS JOIN LATERAL (
    SELECT count(*) AS events
    FROM (
        SELECT FROM django_events_bufferedevent AS b WHERE b.topic_id = waiting.id ORDER BY b.id LIMIT share.size + 1
    ) AS event
) AS counted
ORDER BY waiting.published_at
