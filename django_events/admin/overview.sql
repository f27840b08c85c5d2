-- name: oldest_lease
-- The worker that has events in hand, of all consumers the one whose lease ends first; no row if none has.
--
-- Relies on: nothing; it reads all positions and all leases, which are as many as consumers have partitions.
SELECT holder, leased_until
FROM (
    SELECT p.holder, p.leased_until FROM django_events_position AS p WHERE p.token IS NOT NULL
    UNION ALL
    SELECT l.holder, l.leased_until FROM django_events_deliverylease AS l
) AS lease
ORDER BY leased_until
LIMIT 1
