-- name: add_keys
-- Give the deliveries of a queue consumer the keys of their events, because it handles them in order from now on.
--
-- None is claimed or settled meanwhile: see `stand_still` and `lock_leases`.
-- Identifiers: log. Parameters: consumer_id.
-- Relies on: the primary keys of django_events_delivery and of the log, django_events_deadletter (consumer_id, event_id).
UPDATE django_events_delivery AS d
SET key = coalesce(e.key, dead.key)
FROM django_events_delivery AS own
LEFT JOIN {log} AS e ON e.id = own.event_id
LEFT JOIN django_events_deadletter AS dead ON dead.consumer_id = own.consumer_id AND dead.event_id = own.event_id
WHERE own.consumer_id = %(consumer_id)s
    AND d.consumer_id = own.consumer_id
    AND d.event_id = own.event_id
RETURNING d.event_id


-- name: lock_leases
-- Let no worker settle deliveries of a queue consumer until the transaction ends; wait for those that do now.
--
-- Parameters: consumer_id.
-- Relies on: django_events_deliverylease (consumer_id).
SELECT token FROM django_events_deliverylease WHERE consumer_id = %(consumer_id)s ORDER BY token FOR UPDATE


-- name: stand_still_now
-- As `stand_still`, for one queue consumer, and only if no worker claims in this moment.
--
-- Parameters: consumer_id. Answers whether it stands still.
-- Relies on: nothing but the lock table.
SELECT pg_try_advisory_xact_lock(561, %(consumer_id)s)


-- name: current_leases
-- Which workers have a lease of a consumer now, and of which partition.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id).
SELECT partition, holder
FROM django_events_position
WHERE consumer_id = %(consumer_id)s AND token IS NOT NULL AND leased_until > clock_timestamp()
UNION ALL
SELECT -1, holder
FROM django_events_deliverylease
WHERE consumer_id = %(consumer_id)s AND leased_until > clock_timestamp()
ORDER BY partition, holder
