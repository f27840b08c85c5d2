-- Write down how a run of a step of maintenance went, unless another one has begun since.
--
-- Parameters: name, started_at, result (JSON), error (empty if it worked).
-- Relies on: the primary key of django_events_maintenancestep.
UPDATE django_events_maintenancestep AS s
SET
    finished_at = clock_timestamp(),
    leased_until = NULL,
    result = CASE WHEN %(error)s = '' THEN %(result)s::jsonb ELSE s.result END,
    error = %(error)s,
    failing_since = CASE WHEN %(error)s <> '' THEN coalesce(s.failing_since, s.started_at) END
WHERE s.name = %(name)s AND s.started_at = %(started_at)s
RETURNING s.name
