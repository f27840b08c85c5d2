-- The first number of each partition of a topic that has events.
--
-- Only for topics of several partitions; see ends_of_partitions.sql.
-- Literals: partitions. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT lane.partition, first.number AS begins_at
FROM generate_series(0, {partitions} - 1) AS lane (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = lane.partition
    ORDER BY e.id
    LIMIT 1
) AS first
