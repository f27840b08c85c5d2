-- Which of some ids a topic's log has, and whether they were erased before.
--
-- Literals: topic_id, first, last. Identifiers: log. Parameters: ids.
-- Relies on: the primary key of the log.
SELECT e.id, e.value IS NULL AND e.body IS NULL AS erased
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id <= {last} AND e.id = ANY(%(ids)s::bigint[])
ORDER BY e.id
