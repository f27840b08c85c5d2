-- How many of the positions that a worker knows are still there, as a row like those of agenda.sql.
--
-- Literals: ids.
-- Relies on: the primary key of django_events_position.
SELECT 0::bigint, count(*)::float8, NULL::timestamptz, 0::bigint FROM django_events_position WHERE id = ANY({ids}::bigint[])
