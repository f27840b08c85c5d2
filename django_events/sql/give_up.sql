-- End leases without settling: whoever claims next goes on carefully, as after a crash.
--
-- Parameters: tokens. Answers with those that were still leases.
-- Relies on: django_events_position is small, and this is rare; the primary key of django_events_deliverylease.
WITH lanes AS (
    UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
),
hands AS (
    UPDATE django_events_deliverylease SET leased_until = clock_timestamp() WHERE token = ANY(%(tokens)s::bigint[])
    RETURNING token
)
SELECT token FROM lanes
UNION ALL
SELECT token FROM hands
