-- name: behind
-- The next events of a topic behind a position, oldest first: a part of `bounded`.
--
-- The position is a literal, so that the planner opens no older segment.
-- Literals: topic_id, position, limit. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {position}
ORDER BY e.id
LIMIT {limit}


-- name: ids_behind
-- The next ids of a topic behind a position, oldest first, and whether a filter fits each of them.
--
-- All are returned, so that a gap shows what has expired or is missing, and so that the position moves on.
-- Literals: topic_id, position, limit. Identifiers: log. Parts: match (which events `e` fit).
-- Relies on: the primary key of the log.
SELECT e.id, {match}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {position}
ORDER BY e.id
LIMIT {limit}


-- name: these
-- Some events of a topic by their ids, oldest first: a part of `bounded`.
--
-- Parameters: ids. Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = ANY(%(ids)s::bigint[])
ORDER BY e.id


-- name: holding
-- Which of some events are there, as place 0, and for which of them which predicates hold, by their places from 1 on.
--
-- All predicates that are asked of a topic are tried in one statement, however many listeners have them.
-- Parameters: predicates. Literals: topic_id, first, last. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT 0, e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id <= {last}
UNION ALL
SELECT p.place::int, e.id
FROM {log} AS e
CROSS JOIN unnest(%(predicates)s::text[]) WITH ORDINALITY AS p (predicate, place)
WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id <= {last}
    AND coalesce(e.value @@ p.predicate::jsonpath, false)


-- name: ends
-- Up to which id retention has removed a topic's events, and its last id, if it has any.
--
-- Answers with nothing if the topic was removed.
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary keys of the log and of django_events_topichead.
SELECT h.id_floor, (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1)
FROM django_events_topichead AS h
WHERE h.topic_id = {topic_id}


-- name: standing
-- Which of these topics are still there.
--
-- Parameters: topic_ids.
-- Relies on: the primary key of django_events_topic.
SELECT t.id FROM django_events_topic AS t WHERE t.id = ANY(%(topic_ids)s::int[])
