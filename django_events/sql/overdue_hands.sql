-- The leases of hands whose time is over.
--
-- Parameters: consumer_id, ours (tokens to leave out).
-- Relies on: django_events_deliverylease (consumer_id).
SELECT token
FROM django_events_deliverylease
WHERE consumer_id = %(consumer_id)s AND leased_until <= clock_timestamp() AND token <> ALL(%(ours)s::bigint[])
