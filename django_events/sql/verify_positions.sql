-- The positions of a topic's consumers that can't be: beyond the end, in a partition that isn't theirs, missing, or with
-- another number than the log has there.
--
-- Below the floor, where the log can't be asked any more, a number is at most the floor's: more of them would be events
-- that are left out of the lag. Parameters: last_id, id_floor, floors (an array by partition), most.
-- Literals: topic_id, partitions. Identifiers: log.
-- Answers with how many there are, the fault, consumer, partition, position, number and the expected number.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) of the log.
WITH expected AS (
    SELECT c.id AS consumer_id, lane.partition
    FROM django_events_consumer AS c
    CROSS JOIN LATERAL generate_series(
        CASE WHEN c.partitioned THEN 0 ELSE -1 END, CASE WHEN c.partitioned THEN {partitions} - 1 ELSE -1 END
    ) AS lane (partition)
    WHERE c.topic_id = {topic_id}
),
there AS (
    SELECT p.consumer_id, p.partition, p.position, p.number
    FROM django_events_position AS p
    JOIN django_events_consumer AS c ON c.id = p.consumer_id
    WHERE c.topic_id = {topic_id}
),
placed AS (
    SELECT
        consumer_id, partition, there.position, there.number,
        expected.consumer_id IS NOT NULL AS is_expected,
        CASE
            WHEN partition = -1 OR {partitions} = 1 THEN there.position
            WHEN there.position > %(id_floor)s THEN
                coalesce(
                    (
                        SELECT e.number
                        FROM {log} AS e
                        WHERE e.partition = there.partition AND e.id <= there.position
                        ORDER BY e.id DESC
                        LIMIT 1
                    ),
                    (%(floors)s::bigint[])[partition + 1],
                    0
                )
            WHEN there.position = %(id_floor)s THEN coalesce((%(floors)s::bigint[])[partition + 1], 0)
            ELSE least(there.number, coalesce((%(floors)s::bigint[])[partition + 1], 0))
        END AS expected_number
    FROM expected
    FULL JOIN there USING (consumer_id, partition)
),
wrong AS (
    SELECT
        placed.*,
        CASE
            WHEN position IS NULL THEN 'missing'
            WHEN NOT is_expected THEN 'partition'
            WHEN position > %(last_id)s THEN 'beyond'
            WHEN number <> expected_number THEN 'number'
        END AS fault
    FROM placed
)
SELECT count(*) OVER (), wrong.fault, c.name, wrong.partition, wrong.position, wrong.number, wrong.expected_number
FROM wrong
JOIN django_events_consumer AS c ON c.id = wrong.consumer_id
WHERE wrong.fault IS NOT NULL
ORDER BY wrong.fault, c.name, wrong.partition
LIMIT %(most)s
