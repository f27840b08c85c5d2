-- name: deliver
-- In a trigger, after events came into the log: a delivery for each live queue consumer that an event is for.
--
-- A filter is tried once for each type that came, and only where it fits on the events of that type; consumers
-- with the same filter share that. Filters are data here, as registered: no SQL is put together.
-- It runs in the transfer's transaction, under the heads of the topics, so no consumer becomes live or stops being live
-- between the events and their deliveries. When a predicate fails, quarantine.py finds out whose it is by
-- the setting django_events.only: the ids of consumers, for a try without the others.
-- Relies on: the transition table new_events, django_events_consumer (topic_id) WHERE live.
WITH kind AS MATERIALIZED (
    SELECT DISTINCT topic_id, type FROM new_events
),
live AS MATERIALIZED (
    SELECT
        c.id, c.topic_id, c.ordered, c.delay, c.types, c.type_expressions, c.keys, c.key_expressions,
        c."where"::jsonpath AS predicate,
        min(c.id) OVER (PARTITION BY c.topic_id, c.types, c.keys, c."where") AS filter
    FROM django_events_consumer AS c
    WHERE c.live
        AND c.topic_id IN (SELECT kind.topic_id FROM kind)
        AND (
            nullif(current_setting('django_events.only', true), '') IS NULL
            OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])
        )
),
fitting AS MATERIALIZED (
    SELECT live.filter, live.topic_id, kind.type, live.keys, live.key_expressions, live.predicate
    FROM live
    JOIN kind ON kind.topic_id = live.topic_id
    WHERE live.id = live.filter
        AND (
            live.types IS NULL
            OR live.types @> to_jsonb(kind.type)
            OR EXISTS (SELECT FROM jsonb_array_elements_text(live.type_expressions) AS x WHERE kind.type ~ x)
        )
)
INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)
SELECT
    live.id, e.id, CASE WHEN live.ordered THEN e.key END, statement_timestamp(),
    CASE WHEN e.logged_at + live.delay > statement_timestamp() THEN e.logged_at + live.delay END
FROM fitting
JOIN new_events AS e ON e.topic_id = fitting.topic_id AND e.type = fitting.type
JOIN live ON live.filter = fitting.filter
WHERE (
        fitting.keys IS NULL
        OR fitting.keys @> to_jsonb(e.key)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(fitting.key_expressions) AS x WHERE e.key ~ x)
    )
    AND (fitting.predicate IS NULL OR coalesce(e.value @@ fitting.predicate, false))


-- name: shed
-- In a trigger, after `deliver`: a queue consumer with as many deliveries as it may have is not live any more.
--
-- What comes now stays in the log, until its workers have made room. Consumers whose row another session has locked are
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
