-- Whether a partition has events between two ids.
--
-- Literals: partition, after, upper. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT EXISTS (SELECT FROM {log} AS e WHERE e.partition = {partition} AND e.id > {after} AND e.id <= {upper})
