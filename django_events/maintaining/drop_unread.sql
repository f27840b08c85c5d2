-- name: in_hand_up_to
-- The workers that have deliveries of a queue consumer in hand whose events are going to be removed.
--
-- Parameters: consumer_id, last (the last event that goes).
-- Relies on: django_events_deliverylease (consumer_id).
SELECT l.holder
FROM django_events_deliverylease AS l
WHERE l.consumer_id = %(consumer_id)s
    AND l.leased_until > clock_timestamp()
    AND EXISTS (SELECT FROM jsonb_array_elements_text(l.event_ids) AS named (event_id) WHERE named.event_id::bigint <= %(last)s)
LIMIT 1


-- name: forget_deliveries
-- Delete free deliveries of a queue consumer whose events are going to be removed; answers with their ids.
--
-- Those that a worker has in hand are left to it, and those of dead letters that are handled again have a copy.
-- Parameters: consumer_id, last (the last event that goes), most.
-- Relies on: the primary key of django_events_delivery, django_events_position (consumer_id, partition),
-- django_events_deadletter (consumer_id, event_id).
WITH free AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id > (SELECT p.position FROM django_events_position AS p WHERE p.consumer_id = %(consumer_id)s)
        AND d.event_id <= %(last)s
        AND d.token IS NULL
        AND NOT EXISTS (
            SELECT FROM django_events_deadletter AS copy
            WHERE copy.consumer_id = d.consumer_id AND copy.event_id = d.event_id
        )
    ORDER BY d.event_id
    LIMIT %(most)s
    FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM django_events_delivery AS d
WHERE d.consumer_id = %(consumer_id)s
    AND d.event_id = ANY(ARRAY(SELECT free.event_id FROM free))
    AND d.event_id >= (SELECT min(free.event_id) FROM free)
    AND d.event_id <= (SELECT max(free.event_id) FROM free)
RETURNING d.event_id
