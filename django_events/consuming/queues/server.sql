-- name: redrives
-- Whether a queue consumer has dead letters that can be handled again now.
--
-- Parameters: consumer_id. Parts: redrive.
-- Relies on: what `redrive_of_queue` does.
SELECT d.id
FROM django_events_consumer AS c
CROSS JOIN django_events_deadletter AS d
WHERE c.id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND {redrive}
LIMIT 1


-- name: redrive_deliveries
-- Make deliveries of dead letters of a queue consumer that are due to be handled again.
--
-- In a later statement than `stand_still`. The position goes back before the oldest of them, because claims look at nothing
-- before the position.
-- Parameters: consumer_id. Parts: redrive.
-- Relies on: what `redrive_of_queue` does, django_events_position (consumer_id, partition).
WITH due AS MATERIALIZED (
    SELECT d.event_id, CASE WHEN c.ordered THEN d.key END AS key
    FROM django_events_consumer AS c
    CROSS JOIN django_events_deadletter AS d
    WHERE c.id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND {redrive}
    ORDER BY d.event_id
    LIMIT 1000
),
made AS (
    INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at)
    SELECT %(consumer_id)s, due.event_id, due.key, clock_timestamp() FROM due
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
UPDATE django_events_position AS p
SET position = least(p.position, first.event_id - 1), number = least(p.position, first.event_id - 1)
FROM (SELECT min(made.event_id) AS event_id FROM made) AS first
WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1 AND first.event_id IS NOT NULL
RETURNING p.position
