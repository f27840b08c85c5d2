-- For how many seconds the oldest delivery of queue consumers of a topic is there, whatever goes on with it, or the
-- oldest event in the log that they have no delivery of yet. A consumer without either has no row.
--
-- As oldest_pending.sql, for many consumers in one statement, and without looking for one that nobody has in hand.
-- Literals: consumer_ids (an array), topic_id. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), the primary keys of django_events_delivery and of the log.
SELECT c.id, extract(epoch FROM clock_timestamp() - coalesce(pending.received_at, unfilled.logged_at))::float8
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
LEFT JOIN LATERAL (
    SELECT d.received_at
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id AND d.event_id > p.position
    ORDER BY d.event_id
    LIMIT 1
) AS pending ON true
LEFT JOIN LATERAL (
    SELECT e.logged_at
    FROM {log} AS e
    WHERE NOT c.live AND pending.received_at IS NULL AND e.topic_id = {topic_id} AND e.id > c.filled_until
    ORDER BY e.id
    LIMIT 1
) AS unfilled ON true
WHERE c.id = ANY({consumer_ids}::int[]) AND coalesce(pending.received_at, unfilled.logged_at) IS NOT NULL
