-- Keep workers from claiming these positions until the transaction ends, and see who has a lease.
--
-- Parameters: consumer_ids, partition (null for all).
-- Answers with the token, the holder, and whether the lease is still good.
-- Relies on: django_events_position (consumer_id, partition).
SELECT token, holder, coalesce(leased_until > clock_timestamp(), false) AS leased
FROM django_events_position
WHERE consumer_id = ANY(%(consumer_ids)s::int[])
    AND (%(partition)s::int IS NULL OR partition = %(partition)s::int)
ORDER BY consumer_id, partition
FOR UPDATE
