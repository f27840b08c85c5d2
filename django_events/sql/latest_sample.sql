-- The newest sample that has at least some age.
--
-- Parameters: age (an interval).
-- Relies on: the primary key of django_events_sample.
SELECT s.taken_at, s.published, s.handled, s.lag, s.buffered, s.topics::text, s.consumers::text
FROM django_events_sample AS s
WHERE s.at <= statement_timestamp() - %(age)s::interval AND s.taken_at <= statement_timestamp() - %(age)s::interval
ORDER BY s.at DESC
LIMIT 1
