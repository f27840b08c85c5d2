-- Whether there is a sample of the current minute.
--
-- Relies on: the primary key of django_events_sample.
SELECT EXISTS (SELECT FROM django_events_sample AS s WHERE s.at = date_trunc('minute', statement_timestamp()))
