-- Extend leases that are still their holders'; one that is being settled now is left out, and named as held.
--
-- Parameters: position_ids (null for the lease of a hand), tokens, leases (arrays of one length).
-- Answers with the tokens that still hold.
-- Relies on: the primary keys of django_events_position and django_events_deliverylease.
WITH mine AS MATERIALIZED (
    SELECT given.position_id, given.token, given.lease
    FROM unnest(%(position_ids)s::bigint[], %(tokens)s::bigint[], %(leases)s::interval[])
        AS given (position_id, token, lease)
),
lanes AS MATERIALIZED (
    SELECT p.id, mine.lease
    FROM mine
    JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
    FOR UPDATE OF p SKIP LOCKED
),
hands AS MATERIALIZED (
    SELECT l.token, mine.lease
    FROM mine
    JOIN django_events_deliverylease AS l ON l.token = mine.token
    WHERE mine.position_id IS NULL
    FOR UPDATE OF l SKIP LOCKED
),
renewed_lanes AS (
    UPDATE django_events_position AS p
    SET leased_until = clock_timestamp() + lanes.lease
    FROM lanes
    WHERE p.id = lanes.id
),
renewed_hands AS (
    UPDATE django_events_deliverylease AS l
    SET leased_until = clock_timestamp() + hands.lease
    FROM hands
    WHERE l.token = hands.token
)
SELECT p.token
FROM mine
JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
UNION ALL
SELECT l.token
FROM mine
JOIN django_events_deliverylease AS l ON l.token = mine.token
WHERE mine.position_id IS NULL
