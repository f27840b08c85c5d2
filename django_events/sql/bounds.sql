-- The first and the last id of a topic's log, null where it is empty.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT
    {topic_id} AS topic_id,
    (SELECT min(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}) AS first_id,
    (SELECT max(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}) AS last_id
