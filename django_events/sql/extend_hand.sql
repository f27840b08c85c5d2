-- Let the lease of a hand end at another time, counted from now. Zero ends it without settling: whoever claims next
-- takes it over, and goes on carefully.
--
-- Parameters: token, lease (an interval). Answers with it if it still was a lease.
-- Relies on: the primary key of django_events_deliverylease.
UPDATE django_events_deliverylease SET leased_until = clock_timestamp() + %(lease)s WHERE token = %(token)s RETURNING token
