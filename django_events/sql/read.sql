-- The next events of a consumer behind a position, in order, up to an id that is settled: a part of bounded.sql.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: after, upper, most. Identifiers: log. Parts: events (which events `e` are in the partition), match.
-- Relies on: (partition, id) or the primary key of the log.
SELECT e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at, e.logged_at
FROM {log} AS e
WHERE {events} AND e.id > {after} AND e.id <= {upper} AND {match}
ORDER BY e.id
LIMIT {most}
