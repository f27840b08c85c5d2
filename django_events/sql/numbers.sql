-- The last number of each partition of a topic, as far as events came after `since`.
--
-- Only for topics of several partitions. The topic isn't named: the planner would rather walk back
-- through the primary key, which is far where a partition is quiet.
-- Literals: partitions, since. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT lane.partition, last.number
FROM generate_series(0, {partitions} - 1) AS lane (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = lane.partition AND e.id > {since}
    ORDER BY e.id DESC
    LIMIT 1
) AS last
