-- name: ids_behind
-- The next events of a topic behind a position, oldest first, and whether each is one to be shown.
--
-- All ids are returned, so that a gap at the begin shows what has expired, and so that the position moves on.
-- Literals: topic_id, position, limit. Identifiers: log. Parts: match (which events `e` are shown).
-- Parameters: partition, key (null for all).
-- Relies on: the primary key of the log.
SELECT
    e.id,
    (%(partition)s::int IS NULL OR e.partition = %(partition)s)
    AND (%(key)s::text IS NULL OR coalesce(e.key = %(key)s, false))
    AND {match}
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {position}
ORDER BY e.id
LIMIT {limit}
