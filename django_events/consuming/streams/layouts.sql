-- name: in_hand
-- The leases of a consumer's positions: the token, the partition, its barrier, and whether the lease is not over.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT p.token, p.partition, p.barrier, p.leased_until > clock_timestamp()
FROM django_events_position AS p
WHERE p.consumer_id = %(consumer_id)s AND p.token IS NOT NULL


-- name: unread_before
-- A position of a consumer whose partition has events behind it and before an id.
--
-- Parameters: consumer_id, partition (null for all). Literals: first_id. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) of the log.
SELECT p.id
FROM django_events_position AS p
CROSS JOIN LATERAL (
    SELECT e.id
    FROM {log} AS e
    WHERE e.partition = p.partition AND e.id > p.position AND e.id < {first_id}
    ORDER BY e.id
    LIMIT 1
) AS unread
WHERE p.consumer_id = %(consumer_id)s
    AND (%(partition)s::int IS NULL OR p.partition = %(partition)s::int)
    AND p.position < {first_id} - 1
LIMIT 1
