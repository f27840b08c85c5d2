-- Which deliveries a worker still has in hand: what was settled is not there any more, and again after a rollback.
--
-- Parameters: consumer_id, token, event_ids (that were claimed).
-- Relies on: the primary key of django_events_delivery.
SELECT d.event_id
FROM django_events_delivery AS d
WHERE d.consumer_id = %(consumer_id)s AND d.event_id = ANY(%(event_ids)s::bigint[]) AND d.token = %(token)s
ORDER BY d.event_id
