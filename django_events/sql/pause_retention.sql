-- Let retention drop nothing for a while, or let it go on; answers with until when.
--
-- It waits for a segment that is being dropped in this moment, see paused.sql. What nobody resumes goes on by itself.
-- Parameters: period (an interval, or null to let it go on).
-- Relies on: the primary key of django_events_maintenancestep.
INSERT INTO django_events_maintenancestep AS s (name, started_at, holder, result, error, paused_until)
VALUES ('retention', 'epoch', '', jsonb_build_object(), '', clock_timestamp() + %(period)s::interval)
ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until
RETURNING s.paused_until
