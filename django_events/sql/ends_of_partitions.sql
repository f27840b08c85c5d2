-- The last number of each partition of a topic that has events.
--
-- Only for topics of several partitions. As in numbers.sql, the topic isn't named in the condition: the planner
-- would rather walk back through the primary key, which is far where a partition is quiet.
-- Literals: topic_id, partitions. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT {topic_id} AS topic_id, lane.partition, last.number AS ends_at
FROM generate_series(0, {partitions} - 1) AS lane (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = lane.partition
    ORDER BY e.id DESC
    LIMIT 1
) AS last
