-- name: deliveries_in_hand
-- Deliveries of a queue consumer that a worker has in hand, of these events, oldest first.
--
-- One look by the key for each: a planner without statistics would rather read all that the consumer has.
-- Parameters: consumer_id, event_ids, limit.
-- Relies on: the primary key of django_events_delivery.
SELECT delivery.event_id, delivery.received_at, delivery.visible_at, delivery.token, delivery.attempts, delivery.delivered, delivery.error
FROM unnest(%(event_ids)s::bigint[]) AS event (id)
CROSS JOIN LATERAL (
    SELECT d.*
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = event.id
    LIMIT 1
) AS delivery
WHERE delivery.token IS NOT NULL
ORDER BY event.id
LIMIT %(limit)s
