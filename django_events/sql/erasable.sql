-- The next events of a key in a topic's log, behind an id and up to another, and whether they were erased before.
--
-- Literals: topic_id, after, upper, most. Identifiers: log. Parameters: key.
-- Relies on: (key, id) of a log with a timeline; elsewhere the bounds are near each other, and are read through.
SELECT e.id, e.value IS NULL AND e.body IS NULL AS erased
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
ORDER BY e.id
LIMIT {most}
