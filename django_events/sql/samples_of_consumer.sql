-- A consumer on a topic in the samples of a while, one in each step of time. Only their JSON is read.
--
-- Samples that don't know the consumer are left out.
-- Parameters: consumer_id, period, step (intervals).
-- Relies on: the primary key of django_events_sample.
SELECT
    sample.taken_at, (consumer.counts ->> 0)::bigint AS lag, (consumer.counts ->> 1)::bigint AS handled,
    (consumer.counts ->> 2)::bigint AS failed, (consumer.counts ->> 3)::bigint AS dead
FROM (
    SELECT DISTINCT ON (date_bin(%(step)s::interval, s.at, 'epoch')) s.at, s.taken_at, s.consumers
    FROM django_events_sample AS s
    WHERE s.at > statement_timestamp() - %(period)s::interval
    ORDER BY date_bin(%(step)s::interval, s.at, 'epoch'), s.at DESC
) AS sample
CROSS JOIN LATERAL (SELECT sample.consumers -> %(consumer_id)s::int::text OFFSET 0) AS consumer (counts)
WHERE consumer.counts IS NOT NULL
ORDER BY sample.at
