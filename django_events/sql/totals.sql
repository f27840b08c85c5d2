-- The samples of a while without their JSON, one in each step of time: the last in it.
--
-- Parameters: period, step (intervals).
-- Relies on: the primary key of django_events_sample.
SELECT DISTINCT ON (date_bin(%(step)s::interval, s.at, 'epoch')) s.taken_at, s.published, s.handled, s.lag, s.buffered
FROM django_events_sample AS s
WHERE s.at > statement_timestamp() - %(period)s::interval
ORDER BY date_bin(%(step)s::interval, s.at, 'epoch'), s.at DESC
