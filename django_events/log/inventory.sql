-- name: buffered
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


-- name: waiting
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


-- name: waiting_of_topic
-- How many events of a topic wait in the buffer, counted up to `most`.
--
-- The newest are counted first: where old snapshots keep the rows of moved events, those are not walked over before it
-- has counted as many as it may.
-- Parameters: topic_id, most.
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT count(*)
FROM (
    SELECT FROM django_events_bufferedevent AS b WHERE b.topic_id = %(topic_id)s ORDER BY b.id DESC LIMIT %(most)s
) AS waiting


-- name: next_scheduled
-- The scheduled event that is due next, and for how long it has been due.
--
-- Plain SQL may have said a time that no client reads, like infinity.
-- Relies on: django_events_scheduled_due (publish_at, id).
SELECT t.name, s.publish_at, statement_timestamp() - s.publish_at
FROM django_events_scheduledevent AS s
JOIN django_events_topic AS t ON t.id = s.topic_id
WHERE s.publish_at BETWEEN '1900-01-01' AND '9000-01-01'
ORDER BY s.publish_at, s.id
LIMIT 1


-- name: extent
-- The ends of a topic's log, and when its last event was logged.
--
-- Planning min(id) of a log with segments takes ten times as long as planning its first row.
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT
    {topic_id} AS topic_id,
    (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id LIMIT 1) AS first_id,
    last.id AS last_id,
    last.logged_at
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT e.id, e.logged_at FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1
) AS last ON true


-- name: sizes
-- How many segments the logs of topics have, and how large they are on disk, indexes included.
--
-- Parameters: logs (names of tables).
-- Relies on: the catalog's own indexes.
SELECT log.name, count(link.inhrelid), coalesce(sum(pg_total_relation_size(link.inhrelid)), 0)::bigint
FROM unnest(%(logs)s::text[]) AS log (name)
LEFT JOIN pg_inherits AS link ON link.inhparent = to_regclass(log.name)
GROUP BY log.name
