-- End a lease without settling: whoever claims next goes on carefully, as after a crash.
--
-- Parameters: tokens.
-- Relies on: django_events_position is small; this is rare.
UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
RETURNING id
