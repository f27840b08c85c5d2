-- name: between
-- The next events of a range of ids, oldest first: a part of `bounded`.
--
-- The range is of literals, so that the planner opens the segments that have it and no other.
-- Literals: topic_id, after, upper, most. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
ORDER BY e.id
LIMIT {most}
