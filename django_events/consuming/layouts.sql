-- name: in_hand
-- The leases of a consumer's positions, and whether each is not over.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT p.token, p.leased_until > clock_timestamp()
FROM django_events_position AS p
WHERE p.consumer_id = %(consumer_id)s AND p.token IS NOT NULL


-- name: unread_before
-- Whether a partition has events behind a position and before an id.
--
-- Literals: partition, after, first_id. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT EXISTS (SELECT FROM {log} AS e WHERE e.partition = {partition} AND e.id > {after} AND e.id < {first_id})
