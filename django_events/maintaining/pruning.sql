-- name: forget_expired
-- Delete dedup keys whose window is over; a publisher that is taking one of them again keeps it.
--
-- Parameters: limit. Answers with a row for each.
-- Relies on: django_events_dedup_expired (expires_at), the primary key of django_events_dedupkey.
DELETE FROM django_events_dedupkey AS k
USING (
    SELECT topic_id, key
    FROM django_events_dedupkey
    WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS expired
WHERE k.topic_id = expired.topic_id AND k.key = expired.key
RETURNING k.topic_id


-- name: forget_staged
-- Delete what tasks of Spark staged long ago and no driver published: the driver is gone.
--
-- Parameters: age (an interval), limit. Answers with a row for each.
-- Relies on: django_events_staged_age (staged_at), the primary key of django_events_stagedevent.
DELETE FROM django_events_stagedevent AS s
USING (
    SELECT id
    FROM django_events_stagedevent
    WHERE staged_at < statement_timestamp() - %(age)s::interval
    ORDER BY staged_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE s.id = old.id
RETURNING s.id


-- name: forget_webhook_attempts
-- Delete attempts to send webhooks that are older than they are to be kept.
--
-- Parameters: age (an interval), limit. Answers with a row for each.
-- Relies on: django_events_webhookattempt_a (at), the primary key of django_events_webhookattempt.
DELETE FROM django_events_webhookattempt AS a
USING (
    SELECT id
    FROM django_events_webhookattempt
    WHERE at < statement_timestamp() - %(age)s::interval
    ORDER BY at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE a.id = old.id
RETURNING a.id


-- name: prune_history
-- Delete some of a queue consumer's history that is older than it is to be kept, or all of it where none is kept any
-- more; answers with how many rows.
--
-- Parameters: consumer_id, most.
-- Relies on: django_events_pastdelivery (consumer_id, processed_at), the primary key of django_events_consumer.
WITH old AS MATERIALIZED (
    SELECT p.event_id, p.processed_at
    FROM django_events_consumer AS c
    JOIN django_events_pastdelivery AS p ON p.consumer_id = c.id AND p.processed_at < clock_timestamp() - coalesce(c.history, '0')
    WHERE c.id = %(consumer_id)s
    ORDER BY p.processed_at
    LIMIT %(most)s
),
gone AS (
    DELETE FROM django_events_pastdelivery AS p
    USING old
    WHERE p.consumer_id = %(consumer_id)s AND p.event_id = old.event_id AND p.processed_at = old.processed_at
    RETURNING p.event_id
)
SELECT count(*) FROM gone
