-- name: caused_by
-- What the metadata of an event say of why it exists. A site may have put anything there: what is no text is left out, as
-- it may have fields that are to be masked.
--
-- Literals: topic_id, event_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT CASE WHEN jsonb_typeof(e.metadata -> 'caused_by') = 'string' THEN left(e.metadata ->> 'caused_by', 600) END
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = {event_id}


-- name: newest
-- The newest event of a topic, and when it was logged.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.topic_id, e.id, e.logged_at FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1


-- name: caused
-- Which events of a range of a topic say that they were published because of some others, oldest first.
--
-- Literals: topic_id, after, last (the range). Identifiers: log. Parameters: causes (addresses), most.
-- Relies on: the primary key of the log. It reads the metadata of the whole range.
SELECT e.id, e.type, e.key, e.metadata ->> 'caused_by', e.published_at, e.logged_at
FROM {log} AS e
WHERE e.topic_id = {topic_id}
    AND e.id > {after}
    AND e.id <= {last}
    AND e.metadata ->> 'caused_by' = ANY (%(causes)s::text[])
ORDER BY e.id
LIMIT %(most)s
