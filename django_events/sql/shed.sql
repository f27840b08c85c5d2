-- In a trigger, after deliver.sql: a queue consumer with as many deliveries as it may have is not live any more.
--
-- What comes now stays in the log, until its workers have made room. Those whose row somebody has locked are
-- left alone this time. In the transfer's transaction, under the heads of the topics.
-- Relies on: the transition table new_events, django_events_consumer (topic_id) WHERE live AND max_pending IS NOT NULL,
-- django_events_position (consumer_id, partition), the primary key of django_events_delivery.
UPDATE django_events_consumer AS c
SET live = false, filled_until = owner.last
FROM (
    SELECT c.id, came.last
    FROM (SELECT topic_id, max(id) AS last FROM new_events GROUP BY topic_id) AS came
    JOIN django_events_consumer AS c ON c.topic_id = came.topic_id AND c.live AND c.max_pending IS NOT NULL
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    WHERE came.last - p.position >= c.max_pending
        AND c.max_pending <= (
            SELECT count(*)
            FROM (
                SELECT
                FROM django_events_delivery AS d
                WHERE d.consumer_id = c.id AND d.event_id > p.position
                ORDER BY d.event_id
                LIMIT c.max_pending
            ) AS pending
        )
    FOR NO KEY UPDATE OF c SKIP LOCKED
) AS owner
WHERE c.id = owner.id
