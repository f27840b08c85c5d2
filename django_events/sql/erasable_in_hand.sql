-- Which events are in the hand of workers that read them before they were erased.
--
-- The deliveries are locked, so that somebody who is claiming some of them just now is waited for.
-- Parameters: consumer_ids, event_ids.
-- Relies on: the primary key of django_events_delivery.
WITH locked AS MATERIALIZED (
    SELECT d.event_id, d.token
    FROM django_events_delivery AS d
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id = ANY(%(event_ids)s::bigint[])
    ORDER BY d.consumer_id, d.event_id
    FOR NO KEY UPDATE
)
SELECT DISTINCT event_id FROM locked WHERE token IS NOT NULL
