-- The last event of the batch that somebody read behind a position, without reading what is in it.
--
-- Literals: after, upper, most. Identifiers: log. Parts: events (which events `e` are in the partition), match.
-- Relies on: (partition, id) or the primary key of the log.
SELECT max(batch.id)
FROM (
    SELECT e.id
    FROM {log} AS e
    WHERE {events} AND e.id > {after} AND e.id <= {upper} AND {match}
    ORDER BY e.id
    LIMIT {most}
) AS batch
