-- name: lock_filling
-- Lock a queue consumer, to make deliveries from the log, if it is not live and no other session has it locked.
--
-- A consumer that is stopped, paused or held is left alone. Parameters: consumer_id.
-- Answers with the id up to which it is filled, how many deliveries it may have at most, and from which id on it waits
-- for other shards, or null.
-- Relies on: the primary key of django_events_consumer, django_events_position (consumer_id, partition).
SELECT c.filled_until, c.max_pending, c.waits_from
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = %(consumer_id)s AND NOT c.live AND p.stopped_at IS NULL AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
FOR NO KEY UPDATE OF c SKIP LOCKED


-- name: fill
-- Make deliveries of a range of the log, for a queue consumer that is not live.
--
-- In a transaction that has the consumer's row locked. A delivery that exists stays as it is.
-- Literals: consumer_id, topic_id, after, upper. Identifiers: log. Parts: match.
-- Answers with how many were made, and how many events the range has.
-- Relies on: the primary keys of the log and of django_events_consumer.
WITH made AS (
    INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)
    SELECT
        {consumer_id}, e.id, CASE WHEN c.ordered THEN e.key END, clock_timestamp(),
        CASE WHEN e.logged_at + c.delay > clock_timestamp() THEN e.logged_at + c.delay END
    FROM {log} AS e
    JOIN django_events_consumer AS c ON c.id = {consumer_id}
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {match}
    ORDER BY e.id
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
SELECT
    (SELECT count(*) FROM made),
    (SELECT count(*) FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper})


-- name: filled
-- Write down how far a queue consumer is filled from the log, and whether its deliveries come with the events now.
--
-- Parameters: consumer_id, filled_until, live. Before a consumer becomes live, the topic's head is locked.
-- Relies on: the primary key of django_events_consumer.
UPDATE django_events_consumer SET filled_until = %(filled_until)s, live = %(live)s WHERE id = %(consumer_id)s
RETURNING id


-- name: pending_deliveries
-- How many deliveries a queue consumer has, counted up to `most`; while it is not live, only those up to filled_until.
--
-- Parameters: consumer_id, most (null for all).
-- Relies on: the primary keys of django_events_delivery and django_events_consumer, django_events_position (consumer_id, partition).
SELECT count(*)
FROM (
    SELECT
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    JOIN django_events_delivery AS d ON d.consumer_id = c.id AND d.event_id > p.position
    WHERE c.id = %(consumer_id)s AND (c.live OR d.event_id <= c.filled_until)
    ORDER BY d.event_id
    LIMIT %(most)s::bigint
) AS pending
