-- How far consumers are in their partitions, and what they do there.
--
-- Parameters: consumer_ids.
-- Relies on: django_events_position (consumer_id, partition).
SELECT
    p.consumer_id, p.partition, p.position, p.number,
    CASE
        WHEN p.stopped_at IS NOT NULL THEN 'stopped'
        WHEN p.token IS NOT NULL AND p.leased_until > clock_timestamp() THEN 'handling'
        WHEN c.paused_at IS NOT NULL THEN 'paused'
        WHEN p.token IS NOT NULL THEN 'lost'
        WHEN p.retry_at IS NOT NULL THEN 'retrying'
        ELSE 'idle'
    END AS state,
    p.handled, p.failed, p.discarded, p.dead_lettered, p.attempts, p.retry_at, p.error, p.holder
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
WHERE c.id = ANY(%(consumer_ids)s::int[])
