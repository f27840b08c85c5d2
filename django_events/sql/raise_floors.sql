-- Remember up to where retention has removed a topic's events, and the numbers that its partitions had reached there.
--
-- Parameters: topic_id, id_floor, number_floors (a list as JSON).
-- Relies on: the primary key of django_events_topichead.
UPDATE django_events_topichead
SET id_floor = %(id_floor)s, number_floors = %(number_floors)s::jsonb
WHERE topic_id = %(topic_id)s
RETURNING topic_id
