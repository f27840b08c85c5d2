-- Who has a lease of these consumers, and whether it is still good.
--
-- Parameters: consumer_ids, partition (null for all).
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id).
SELECT token, holder, leased_until > clock_timestamp() AS leased
FROM django_events_position
WHERE consumer_id = ANY(%(consumer_ids)s::int[])
    AND token IS NOT NULL
    AND (%(partition)s::int IS NULL OR partition = %(partition)s::int)
UNION ALL
SELECT token, holder, leased_until > clock_timestamp()
FROM django_events_deliverylease
WHERE consumer_id = ANY(%(consumer_ids)s::int[]) AND coalesce(%(partition)s::int, -1) = -1
ORDER BY token
