-- name: deliver
-- In a trigger, after events came into the log: a delivery for each live queue consumer that an event is for, as far as its
-- filter is not indexed.
--
-- A filter is tried once for each type that came, and only where it fits on the events of that type; consumers
-- with the same filter share that. Filters are data here, as registered: no SQL is put together.
-- It runs in the transfer's transaction, under the heads of the topics, so no consumer becomes live or stops being live
-- between the events and their deliveries. When a predicate fails, quarantine.py finds out whose it is by
-- the setting django_events.only: the ids of consumers, for a try without the others.
-- Relies on: the transition table new_events, django_events_consumer (topic_id) WHERE live AND NOT indexed.
WITH kind AS MATERIALIZED (
    SELECT DISTINCT topic_id, type FROM new_events
),
live AS MATERIALIZED (
    SELECT
        c.id, c.topic_id, c.ordered, c.delay, c.types, c.type_expressions, c.keys, c.key_expressions,
        c."where"::jsonpath AS predicate, c.metadata::jsonpath AS of_metadata, coalesce(c.vars, jsonb_build_object()) AS vars,
        min(c.id) OVER (PARTITION BY c.topic_id, c.types, c.keys, c."where", c.metadata, c.vars) AS filter
    FROM django_events_consumer AS c
    WHERE c.live
        AND NOT c.indexed
        AND c.topic_id IN (SELECT kind.topic_id FROM kind)
        AND (
            nullif(current_setting('django_events.only', true), '') IS NULL
            OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])
        )
),
fitting AS MATERIALIZED (
    SELECT live.filter, live.topic_id, kind.type, live.keys, live.key_expressions, live.predicate, live.of_metadata, live.vars
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
    AND (fitting.predicate IS NULL OR coalesce(jsonb_path_match(e.value, fitting.predicate, fitting.vars, true), false))
    AND (
        fitting.of_metadata IS NULL
        OR coalesce(jsonb_path_match(e.metadata, fitting.of_metadata, fitting.vars, true), false)
    )


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


-- name: deliver_indexed
-- In a trigger, after `deliver`: the same for consumers whose filters are indexed, see `filter_terms`.
--
-- Of each event the items are looked up at the paths that filters of its topic ask about, and only filters with such a term
-- are tried on it, each once for all consumers that have it. Types and keys are asked first: a predicate is not tried on
-- what isn't meant. Each step finds its rows by index for each row of the step before (OFFSET 0): the planner knows nothing
-- of the events that come, and would join all filters to all events.
-- In the transfer's transaction, under the heads of the topics, with django_events.only as in `deliver`.
-- Relies on: the transition table new_events, django_events_filterterm (topic_id, source, path, value, filter_digest),
-- django_events_consumer (topic_id, filter_digest) WHERE live AND indexed.
WITH RECURSIVE asked AS (
    SELECT first.topic_id, first.source, first.path
    FROM (SELECT DISTINCT topic_id FROM new_events) AS came
    CROSS JOIN LATERAL (
        SELECT t.topic_id, t.source, t.path
        FROM django_events_filterterm AS t
        WHERE t.topic_id = came.topic_id
        ORDER BY t.topic_id, t.source, t.path
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT next.topic_id, next.source, next.path
    FROM asked
    CROSS JOIN LATERAL (
        SELECT t.topic_id, t.source, t.path
        FROM django_events_filterterm AS t
        WHERE t.topic_id = asked.topic_id AND (t.source, t.path) > (asked.source, asked.path)
        ORDER BY t.topic_id, t.source, t.path
        LIMIT 1
    ) AS next
),
matched AS (
    SELECT e.topic_id, e.id, e.key, e.logged_at, f.filter_digest
    FROM new_events AS e
    CROSS JOIN LATERAL (
        SELECT DISTINCT found.filter_digest
        FROM asked
        CROSS JOIN LATERAL jsonb_path_query(
            CASE asked.source
                WHEN 'value' THEN e.value
                WHEN 'metadata' THEN e.metadata
                ELSE to_jsonb(e.key)
            END,
            asked.path::jsonpath, jsonb_build_object(), true
        ) AS item (value)
        CROSS JOIN LATERAL (
            SELECT t.filter_digest
            FROM django_events_filterterm AS t
            WHERE t.topic_id = asked.topic_id AND t.source = asked.source AND t.path = asked.path AND t.value = item.value
            OFFSET 0
        ) AS found
        WHERE asked.topic_id = e.topic_id AND jsonb_typeof(item.value) NOT IN ('object', 'array')
    ) AS candidate
    CROSS JOIN LATERAL (
        SELECT c.*
        FROM django_events_consumer AS c
        WHERE c.topic_id = e.topic_id AND c.filter_digest = candidate.filter_digest AND c.live AND c.indexed
            AND (
                nullif(current_setting('django_events.only', true), '') IS NULL
                OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])
            )
        LIMIT 1
    ) AS f
    WHERE CASE
        WHEN f.types IS NOT NULL
            AND NOT f.types @> to_jsonb(e.type)
            AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(f.type_expressions) AS x WHERE e.type ~ x)
            THEN false
        WHEN f.keys IS NOT NULL
            AND NOT coalesce(f.keys @> to_jsonb(e.key), false)
            AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(f.key_expressions) AS x WHERE e.key ~ x)
            THEN false
        WHEN f."where" IS NOT NULL
            AND NOT coalesce(
                jsonb_path_match(e.value, f."where"::jsonpath, coalesce(f.vars, jsonb_build_object()), true), false
            )
            THEN false
        ELSE f.metadata IS NULL OR coalesce(
            jsonb_path_match(e.metadata, f.metadata::jsonpath, coalesce(f.vars, jsonb_build_object()), true), false
        )
    END
    OFFSET 0
)
INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)
SELECT
    c.id, matched.id, CASE WHEN c.ordered THEN matched.key END, statement_timestamp(),
    CASE WHEN matched.logged_at + c.delay > statement_timestamp() THEN matched.logged_at + c.delay END
FROM matched
CROSS JOIN LATERAL (
    SELECT c.id, c.ordered, c.delay
    FROM django_events_consumer AS c
    WHERE c.topic_id = matched.topic_id AND c.filter_digest = matched.filter_digest AND c.live AND c.indexed
            AND (
                nullif(current_setting('django_events.only', true), '') IS NULL
                OR c.id = ANY(nullif(current_setting('django_events.only', true), '')::int[])
            )
    OFFSET 0
) AS c
