-- End the lease of a hand without settling: whoever claims next takes it over, and goes on carefully.
--
-- Parameters: token. Answers with it if it still was a lease.
-- Relies on: the primary key of django_events_deliverylease.
UPDATE django_events_deliverylease SET leased_until = clock_timestamp() WHERE token = %(token)s RETURNING token
