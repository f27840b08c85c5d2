-- Who has a lease of these positions, and whether it is still good.
--
-- Parameters: consumer_ids, partition (null for all).
-- Relies on: django_events_position (consumer_id, partition).
SELECT token, holder, leased_until > clock_timestamp() AS leased
FROM django_events_position
WHERE consumer_id = ANY(%(consumer_ids)s::int[])
    AND token IS NOT NULL
    AND (%(partition)s::int IS NULL OR partition = %(partition)s::int)
ORDER BY consumer_id, partition
