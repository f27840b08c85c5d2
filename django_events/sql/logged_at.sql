-- When an event was logged.
--
-- The id is a literal, so that the planner opens one segment.
-- Literals: topic_id, id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.logged_at FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id = {id}
