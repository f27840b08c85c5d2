-- name: recent_samples
-- The samples of a while with their JSON, in order of time.
--
-- Parameters: period (an interval).
-- Relies on: the primary key of django_events_sample.
SELECT s.taken_at, s.topics::text, s.consumers::text
FROM django_events_sample AS s
WHERE s.at > statement_timestamp() - %(period)s::interval
ORDER BY s.at


-- name: working
-- How many workers have something of these consumers in hand now, by the id of the consumer.
--
-- Parameters: consumer_ids.
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id).
SELECT held.consumer_id, count(DISTINCT held.holder)
FROM (
    SELECT p.consumer_id, p.holder
    FROM django_events_position AS p
    WHERE p.consumer_id = ANY(%(consumer_ids)s::int[]) AND p.token IS NOT NULL AND p.leased_until > statement_timestamp()
    UNION ALL
    SELECT l.consumer_id, l.holder
    FROM django_events_deliverylease AS l
    WHERE l.consumer_id = ANY(%(consumer_ids)s::int[]) AND l.leased_until > statement_timestamp()
) AS held
GROUP BY held.consumer_id
