-- The events of a range of a log that are wrong, and what they should be by the event before them.
--
-- Parts: walked. Parameters: most; before_id, before_at, walked, lanes, lane_ids, numbers, places, as in walked.sql.
-- Answers with how many there are of each fault, and the first of them.
-- Relies on: the primary key of the log.
WITH {walked},
wrong AS (
    SELECT
        fault.name, walked.*,
        count(*) OVER (PARTITION BY fault.name) AS total,
        row_number() OVER (PARTITION BY fault.name ORDER BY walked.id) AS rank
    FROM walked
    CROSS JOIN LATERAL (
        SELECT 'gap' AS name WHERE walked.is_behind_gap
        UNION ALL SELECT 'time' WHERE walked.is_earlier
        UNION ALL SELECT 'partition' WHERE walked.is_nowhere
        UNION ALL SELECT 'number' WHERE walked.is_misnumbered
    ) AS fault
)
SELECT name, total, id, partition, number, before_id, before_number, logged_at, before_at
FROM wrong
WHERE rank <= %(most)s
ORDER BY name, id
