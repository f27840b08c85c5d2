-- How long the oldest delivery waits that queue consumers of a topic could have handled, or the oldest event in the log that it
-- has no delivery of yet; null if there is neither.
--
-- It is looked for among the oldest thousand: where all of those are in hand or wait for a time, a million may be.
-- Literals: consumer_ids (an array), topic_id. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), the primary keys of django_events_delivery and of the log.
SELECT
    c.id AS consumer_id,
    clock_timestamp() - coalesce(
        (
            SELECT d.received_at
            FROM (
                SELECT d.event_id, d.received_at, d.token, d.visible_at
                FROM django_events_delivery AS d
                WHERE d.consumer_id = c.id AND d.event_id > p.position
                ORDER BY d.event_id
                LIMIT 1000
            ) AS d
            WHERE d.token IS NULL AND d.visible_at IS NULL
            ORDER BY d.event_id
            LIMIT 1
        ),
        (
            SELECT e.logged_at
            FROM {log} AS e
            WHERE NOT c.live AND e.topic_id = {topic_id} AND e.id > c.filled_until
            ORDER BY e.id
            LIMIT 1
        )
    )
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = ANY({consumer_ids}::int[]) AND c.topic_id = {topic_id} AND c.mode = 'queue'
