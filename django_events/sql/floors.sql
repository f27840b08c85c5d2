-- How far each consumer is at least, and in how many of the positions that a worker knows.
--
-- Parameters: position_ids.
-- Relies on: the primary key of django_events_position.
SELECT consumer_id, min(position), count(*)
FROM django_events_position
WHERE id = ANY(%(position_ids)s::bigint[])
GROUP BY consumer_id
