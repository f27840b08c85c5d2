-- The names of the topics that the database has.
--
-- Relies on: nothing; it is a row for each topic.
SELECT name FROM django_events_topic
