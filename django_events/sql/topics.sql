-- The topics of the database, by name.
--
-- Relies on: the primary key of django_events_topichead.
SELECT t.name, t.id, t.incarnation::text, h.id_floor
FROM django_events_topic AS t
JOIN django_events_topichead AS h ON h.topic_id = t.id
