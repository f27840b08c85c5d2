-- name: next_number
-- The number of the first event of a partition behind a position.
--
-- Literals: partition, after. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT e.number FROM {log} AS e WHERE e.partition = {partition} AND e.id > {after} ORDER BY e.id LIMIT 1
