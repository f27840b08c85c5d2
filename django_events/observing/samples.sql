-- name: sampled
-- Whether there is a sample of the current minute.
--
-- Relies on: the primary key of django_events_sample.
SELECT EXISTS (SELECT FROM django_events_sample AS s WHERE s.at = date_trunc('minute', statement_timestamp()))


-- name: take_sample
-- Store the sample of the current minute, unless another process was quicker. Answers with a row if it is stored.
--
-- Parameters: published, handled, lag, buffered, topics and consumers (JSON).
-- Relies on: the primary key of django_events_sample.
INSERT INTO django_events_sample (at, published, handled, lag, buffered, topics, consumers)
VALUES (
    date_trunc('minute', clock_timestamp()), %(published)s, %(handled)s, %(lag)s, %(buffered)s,
    %(topics)s::jsonb, %(consumers)s::jsonb
)
ON CONFLICT (at) DO NOTHING
RETURNING at


-- name: forget_samples
-- Delete samples that are too old, the oldest first.
--
-- Parameters: age (an interval), limit. Answers with a row for each.
-- Relies on: the primary key of django_events_sample.
DELETE FROM django_events_sample AS s
USING (
    SELECT at
    FROM django_events_sample
    WHERE at < statement_timestamp() - %(age)s::interval
    ORDER BY at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE s.at = old.at
RETURNING s.at


-- name: totals
-- The samples of a while without their JSON, one in each step of time: the last in it.
--
-- Parameters: period, step (intervals).
-- Relies on: the primary key of django_events_sample.
SELECT DISTINCT ON (date_bin(%(step)s::interval, s.at, 'epoch')) s.taken_at, s.published, s.handled, s.lag, s.buffered
FROM django_events_sample AS s
WHERE s.at > statement_timestamp() - %(period)s::interval
ORDER BY date_bin(%(step)s::interval, s.at, 'epoch'), s.at DESC


-- name: samples_of_consumer
-- A consumer on a topic in the samples of a while, one in each step of time. Only their JSON is read.
--
-- Samples that don't know the consumer are left out.
-- Parameters: consumer_id, period, step (intervals).
-- Relies on: the primary key of django_events_sample.
SELECT
    sample.taken_at, (consumer.counts ->> 0)::bigint AS lag, (consumer.counts ->> 1)::bigint AS handled,
    (consumer.counts ->> 2)::bigint AS failed, (consumer.counts ->> 3)::bigint AS dead,
    (consumer.counts ->> 4)::float8 AS behind
FROM (
    SELECT DISTINCT ON (date_bin(%(step)s::interval, s.at, 'epoch')) s.at, s.taken_at, s.consumers
    FROM django_events_sample AS s
    WHERE s.at > statement_timestamp() - %(period)s::interval
    ORDER BY date_bin(%(step)s::interval, s.at, 'epoch'), s.at DESC
) AS sample
CROSS JOIN LATERAL (SELECT sample.consumers -> %(consumer_id)s::int::text OFFSET 0) AS consumer (counts)
WHERE consumer.counts IS NOT NULL
ORDER BY sample.at


-- name: latest_sample
-- The newest sample that has at least some age.
--
-- Parameters: age (an interval).
-- Relies on: the primary key of django_events_sample.
SELECT s.taken_at, s.published, s.handled, s.lag, s.buffered, s.topics::text, s.consumers::text
FROM django_events_sample AS s
WHERE s.at <= statement_timestamp() - %(age)s::interval AND s.taken_at <= statement_timestamp() - %(age)s::interval
ORDER BY s.at DESC
LIMIT 1
