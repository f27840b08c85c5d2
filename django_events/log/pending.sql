-- name: pending
-- Which topics have events in the buffer, how many (counted up to a share of the batch), and up to
-- which ticket those go.
--
-- Every topic with events gets the same share, so that looking costs one batch however many topics
-- are flooded; a count below the share is all there is (the last column). Each scan starts behind the
-- topic's mark: what is before it was moved, and its dead index entries would be walked again and
-- again while an old snapshot is open. Whether a topic is said to fail, and whether it is a mirror, comes with it. Every
-- row begins with a fingerprint of the topics, the buffer's file and the server's start: when it changes, what the worker
-- remembers is worth nothing. It ends with the seconds until the next scheduled event is due. There is one row without a
-- topic if none has events.
-- Parameters: topic_ids, marks (arrays of one length: what the worker remembers), only (the topic
-- to look at, or null for all), batch_size, scheduled_from (the time before which nothing
-- scheduled is looked for).
-- Relies on: the primary key of the buffer (topic_id, id), django_events_scheduled_due (publish_at, id).
WITH topic AS MATERIALIZED (
    SELECT t.id, t.name, coalesce(known.mark, 0) AS mark, t.failure, t.mirror_of
    FROM django_events_topic AS t
    LEFT JOIN unnest(%(topic_ids)s::int[], %(marks)s::bigint[]) AS known (topic_id, mark) ON known.topic_id = t.id
    WHERE %(only)s::int IS NULL OR t.id = %(only)s::int
),
waiting AS MATERIALIZED (
    SELECT topic.*
    FROM topic
    CROSS JOIN LATERAL (
        SELECT FROM django_events_bufferedevent AS b
        WHERE b.topic_id = topic.id AND b.id > topic.mark
        ORDER BY b.id
        LIMIT 1
    ) AS first
),
share AS (
    SELECT greatest(%(batch_size)s / greatest(count(*), 1), 1) AS size FROM waiting
),
fingerprint AS (
    SELECT
        concat_ws(
            ' ',
            md5(string_agg(incarnation::text, ',' ORDER BY id)),
            pg_relation_filenode('django_events_bufferedevent'),
            extract(epoch FROM pg_postmaster_start_time())
        ) AS print
    FROM django_events_topic
),
scheduled AS (
    SELECT (extract(epoch FROM min(s.publish_at)) - extract(epoch FROM statement_timestamp()))::float8 AS due_in
    FROM django_events_scheduledevent AS s
    WHERE s.publish_at >= %(scheduled_from)s::timestamptz
)
SELECT
    fingerprint.print, waiting.id, waiting.name, next.events, next.upper, next.events < share.size,
    waiting.failure <> '', waiting.mirror_of <> '', scheduled.due_in
FROM fingerprint
CROSS JOIN scheduled
CROSS JOIN share
LEFT JOIN waiting ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS events, max(ids.id) AS upper
    FROM (
        SELECT b.id
        FROM django_events_bufferedevent AS b
        WHERE b.topic_id = waiting.id AND b.id > waiting.mark
        ORDER BY b.id
        LIMIT share.size
    ) AS ids
) AS next ON waiting.id IS NOT NULL
ORDER BY waiting.id
