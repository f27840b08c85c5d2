-- The events of dead letters that are handled again, in order: a part of bounded.sql.
--
-- Parameters: consumer_id, event_ids.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    d.event_id AS id, d.partition, d.number, d.type, d.key, d.value, d.body, d.metadata, d.published_at, d.logged_at
FROM django_events_deadletter AS d
WHERE d.consumer_id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND d.event_id = ANY(%(event_ids)s::bigint[])
ORDER BY d.event_id
