-- The topics of the database, by name.
--
-- Relies on: django_events_topic (name).
SELECT t.name, t.id, t.incarnation::text
FROM django_events_topic AS t
