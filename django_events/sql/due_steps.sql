-- The steps of maintenance whose time has come, and that nobody runs now.
--
-- Time is divided into equal parts, for all processes the same: a step runs once in each.
-- Parameters: names, periods (arrays of one length).
-- Relies on: the primary key of django_events_maintenancestep.
SELECT step.name
FROM unnest(%(names)s::text[], %(periods)s::interval[]) WITH ORDINALITY AS step (name, period, place)
LEFT JOIN django_events_maintenancestep AS s ON s.name = step.name
WHERE (s.leased_until IS NULL OR s.leased_until <= clock_timestamp())
    AND (
        s.name IS NULL
        OR date_bin(step.period, clock_timestamp(), 'epoch') <> date_bin(step.period, s.started_at, 'epoch')
    )
ORDER BY step.place
