-- name: first_ids
-- The ids from which on events were logged at these moments or later, in the order of the moments; the end of the log
-- where none were.
--
-- All are found by halving at once: times don't decrease along ids. Where ids are missing, any id in such a gap may stand for
-- the one behind it.
-- Parameters: moments, first (the first id that may be asked for), beyond (the end of the log).
-- Literals: topic_id. Identifiers: log. Relies on: the primary key of the log.
WITH RECURSIVE halved AS (
    SELECT moment.number, moment.at, %(first)s::bigint AS low, %(beyond)s::bigint AS high
    FROM unnest(%(moments)s::timestamptz[]) WITH ORDINALITY AS moment (at, number)
    UNION ALL
    SELECT
        h.number,
        h.at,
        CASE WHEN found.logged_at < h.at THEN found.id + 1 ELSE h.low END,
        CASE WHEN found.logged_at < h.at THEN h.high ELSE half.id END
    FROM halved AS h
    CROSS JOIN LATERAL (SELECT (h.low + h.high) / 2 AS id) AS half
    LEFT JOIN LATERAL (
        SELECT e.id, e.logged_at
        FROM {log} AS e
        WHERE e.topic_id = {topic_id} AND e.id >= half.id AND e.id < h.high
        ORDER BY e.id
        LIMIT 1
    ) AS found ON true
    WHERE h.low < h.high
)
SELECT h.low FROM halved AS h WHERE h.low >= h.high ORDER BY h.number
