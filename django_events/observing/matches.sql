-- name: matches
-- How many of the newest events of a topic there are of each type, how many a filter matches, and the newest of those.
--
-- Literals: topic_id, last (how many events). Identifiers: log. Parts: match (which events `e` it matches).
-- Relies on: the primary key of the log.
SELECT
    e.type,
    count(*),
    count(*) FILTER (WHERE e.fits),
    coalesce((array_agg(e.id ORDER BY e.id DESC) FILTER (WHERE e.fits))[1:3], ARRAY[]::bigint[])
FROM (
    SELECT e.id, e.type, {match} AS fits
    FROM (
        SELECT e.id, e.type, e.key, e.value, e.metadata FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT {last}
    ) AS e
) AS e
GROUP BY e.type
ORDER BY 3 DESC, 2 DESC, 1
