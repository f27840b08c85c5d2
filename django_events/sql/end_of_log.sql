-- The last id of a topic's log, under partition -1; null where the log is empty.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT {topic_id} AS topic_id, -1 AS partition, max(e.id) AS ends_at FROM {log} AS e WHERE e.topic_id = {topic_id}
