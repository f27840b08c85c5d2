-- name: verify_positions
-- The positions of a topic's consumers that can't be: beyond the end, in a partition that isn't theirs, missing, or with
-- another number than the log has there.
--
-- Below the floor, where the log can't be asked any more, a number is at most the floor's: more of them would be events
-- that are left out of the lag. Where the log is compacted, the event with that number may be gone: it is no less than
-- that of what is left. Parameters: most_partitions (an array by layout: how many there are from it on), last_id,
-- id_floor, compacted_until, floors (an array by partition), most. Literals: topic_id, is_undivided. Identifiers: log.
-- Answers with how many there are, the fault, consumer, partition, position, number and the expected number.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) of the log.
WITH expected AS (
    SELECT c.id AS consumer_id, part.partition
    FROM django_events_consumer AS c
    CROSS JOIN LATERAL generate_series(
        CASE WHEN c.partitioned THEN 0 ELSE -1 END,
        CASE
            WHEN c.partitioned THEN (%(most_partitions)s::int[])[
                1 + coalesce((SELECT max(own.layout) FROM django_events_position AS own WHERE own.consumer_id = c.id), 0)
            ] - 1
            ELSE -1
        END
    ) AS part (partition)
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
            WHEN partition = -1 OR {is_undivided} THEN there.position
            WHEN there.position > %(id_floor)s THEN
                greatest(
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
                    ),
                    CASE WHEN there.position < %(compacted_until)s THEN there.number END
                )
            WHEN there.position = %(id_floor)s THEN
                greatest(
                    coalesce((%(floors)s::bigint[])[partition + 1], 0),
                    CASE WHEN there.position < %(compacted_until)s THEN there.number END
                )
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


-- name: verify_attempts
-- The positions of a topic's streams whose attempts, or whose events to be handled one by one, are about no event that the
-- consumer has there.
--
-- What the log has dropped is believed. A consumer that turned may handle events up to one of another partition one by one.
-- Parameters: last_id, id_floor, most. Literals: topic_id. Identifiers: log.
-- Answers with how many there are, the fault, consumer, partition, and the id.
-- Relies on: the primary key of the log, django_events_position (consumer_id, partition).
WITH said AS (
    SELECT c.name, p.partition, said.fault, said.id
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id
    CROSS JOIN LATERAL (
        VALUES ('attempted', p.attempted), ('careful', nullif(p.careful_until, 0))
    ) AS said (fault, id)
    WHERE c.topic_id = {topic_id} AND c.mode = 'stream' AND (said.id > %(id_floor)s OR said.id < 1)
)
SELECT count(*) OVER (), said.fault, said.name, said.partition, said.id
FROM said
LEFT JOIN {log} AS e ON e.topic_id = {topic_id} AND e.id = said.id
WHERE said.id > %(last_id)s
    OR said.id < 1
    OR (said.fault = 'attempted' AND said.partition <> -1 AND e.partition <> said.partition)
ORDER BY said.fault, said.name, said.partition
LIMIT %(most)s


-- name: verify_filling
-- Queue consumers that are filled with events beyond the end of the log.
--
-- Parameters: topic_id, last_id.
-- Relies on: the primary key of django_events_consumer.
SELECT c.name, c.filled_until
FROM django_events_consumer AS c
WHERE c.topic_id = %(topic_id)s AND c.mode = 'queue' AND c.filled_until > %(last_id)s
ORDER BY c.name
