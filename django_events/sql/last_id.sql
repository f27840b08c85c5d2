-- The last id of a topic's log.
--
-- Identifiers: log; topic_id and floor are literals.
-- Relies on: the primary key of the log.
SELECT coalesce((SELECT max(id) FROM {log} WHERE topic_id = {topic_id}), {floor})
