-- The first id that a topic's log still has.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT min(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}
