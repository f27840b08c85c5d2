-- name: due_steps
-- The steps of maintenance that are due, and that no process runs now.
--
-- Each step's time is divided into periods, the same for all processes: it runs once in each of them.
-- Parameters: names, periods (arrays of one length).
-- Relies on: the primary key of django_events_maintenancestep.
SELECT step.name
FROM unnest(%(names)s::text[], %(periods)s::interval[]) WITH ORDINALITY AS step (name, period, index)
LEFT JOIN django_events_maintenancestep AS s ON s.name = step.name
WHERE (s.leased_until IS NULL OR s.leased_until <= clock_timestamp())
    AND (
        s.name IS NULL
        OR date_bin(step.period, clock_timestamp(), 'epoch') <> date_bin(step.period, s.started_at, 'epoch')
    )
ORDER BY step.index


-- name: begin_step
-- Lease a step of maintenance, unless another process runs it now, or has run it in this period.
--
-- Parameters: name, period (null to run it whether it is due or not), lease (an interval), holder.
-- Answers with when it began, by which its end is known.
-- Relies on: the primary key of django_events_maintenancestep.
INSERT INTO django_events_maintenancestep AS s (name, started_at, leased_until, holder, result, error)
VALUES (%(name)s, clock_timestamp(), clock_timestamp() + %(lease)s::interval, %(holder)s, jsonb_build_object(), '')
ON CONFLICT (name) DO UPDATE
SET started_at = excluded.started_at, leased_until = excluded.leased_until, holder = excluded.holder
WHERE (s.leased_until IS NULL OR s.leased_until <= clock_timestamp())
    AND (
        %(period)s::interval IS NULL
        OR date_bin(%(period)s::interval, clock_timestamp(), 'epoch')
        <> date_bin(%(period)s::interval, s.started_at, 'epoch')
    )
RETURNING s.started_at


-- name: end_step
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
