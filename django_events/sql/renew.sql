-- Extend leases that are still their holders'; one that is being settled now is left out, and named as held.
--
-- Parameters: position_ids, tokens, leases (arrays of one length).
-- Answers with the tokens that still hold.
-- Relies on: the primary key of django_events_position.
WITH held AS MATERIALIZED (
    SELECT p.id, mine.lease
    FROM unnest(%(position_ids)s::bigint[], %(tokens)s::bigint[], %(leases)s::interval[])
        AS mine (position_id, token, lease)
    JOIN django_events_position AS p ON p.id = mine.position_id AND p.token = mine.token
    FOR UPDATE OF p SKIP LOCKED
),
renewed AS (
    UPDATE django_events_position AS p
    SET leased_until = clock_timestamp() + held.lease
    FROM held
    WHERE p.id = held.id
)
SELECT p.token
FROM django_events_position AS p
WHERE p.id = ANY(%(position_ids)s::bigint[]) AND p.token = ANY(%(tokens)s::bigint[])
