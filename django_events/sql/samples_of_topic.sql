-- A topic in the samples of a while, one in each step of time. Only their JSON is read.
--
-- Samples that don't know the topic are left out.
-- Parameters: topic_id, period, step (intervals).
-- Relies on: the primary key of django_events_sample.
SELECT sample.taken_at, (topic.counts ->> 0)::bigint AS last_id, (topic.counts ->> 1)::bigint AS buffered
FROM (
    SELECT DISTINCT ON (date_bin(%(step)s::interval, s.at, 'epoch')) s.at, s.taken_at, s.topics
    FROM django_events_sample AS s
    WHERE s.at > statement_timestamp() - %(period)s::interval
    ORDER BY date_bin(%(step)s::interval, s.at, 'epoch'), s.at DESC
) AS sample
CROSS JOIN LATERAL (SELECT sample.topics -> %(topic_id)s::int::text OFFSET 0) AS topic (counts)
WHERE topic.counts IS NOT NULL
ORDER BY sample.at
