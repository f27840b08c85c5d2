-- The ends of a topic's log, and when its last event was logged.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT
    {topic_id} AS topic_id,
    (SELECT min(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}) AS first_id,
    last.id AS last_id,
    last.logged_at
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT e.id, e.logged_at FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1
) AS last ON true
