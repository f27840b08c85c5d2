-- The last id of a topic that can be read behind a position: nothing can appear at or below it any more.
--
-- The position is a literal, so that the planner opens no older segment.
-- Literals: topic_id, after. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} ORDER BY e.id DESC LIMIT 1
