-- End a lease without settling: whoever claims next goes on carefully, as after a crash.
--
-- Parameters: tokens. Answers with those that were still leases.
-- Relies on: django_events_position is small; this is rare.
UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
RETURNING token
