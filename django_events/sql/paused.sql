-- Until when retention drops nothing; no answer if it may. While it may, nobody pauses it before this transaction ends.
--
-- The row that is locked is there: it is written before the step runs, by begin_step.sql, or by a pause before that.
-- Relies on: the primary key of django_events_maintenancestep.
WITH step AS MATERIALIZED (
    SELECT s.paused_until FROM django_events_maintenancestep AS s WHERE s.name = 'retention' FOR SHARE
)
SELECT step.paused_until FROM step WHERE step.paused_until > clock_timestamp()
