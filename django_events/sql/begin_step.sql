-- Have a step of maintenance for oneself, unless somebody runs it now, or has run it in this part of the time.
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
