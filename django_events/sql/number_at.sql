-- The number of the last event of a partition between two ids, if there is one.
--
-- Literals: partition, after, upper. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT e.number
FROM {log} AS e
WHERE e.partition = {partition} AND e.id > {after} AND e.id <= {upper}
ORDER BY e.id DESC
LIMIT 1
