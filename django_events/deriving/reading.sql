-- name: events
-- The next events of a topic after an id, in order, as far as they are for a consumer: a part of `bounded`.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: topic_id, after, upper, most. Identifiers: log. Parts: match.
-- Relies on: the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {match}
ORDER BY e.id
LIMIT {most}


-- name: of_keys
-- Part of a condition on an event `e`: it has one of these keys.
--
-- Literals: keys (an array).
-- Relies on: nothing, it is an expression.
e.key = ANY({keys})
