-- name: walk
-- Walk a range of a log: how many events each partition has there, its last one, and how many of them are wrong.
--
-- Parts: walked. Parameters: before_id, before_at, walked, lanes, lane_ids, numbers, places, as in `walked`.
-- Relies on: the primary key of the log.
WITH {walked}
SELECT
    partition, count(*), max(id), max(number) FILTER (WHERE newest), max(place), max(logged_at) FILTER (WHERE newest),
    count(*) FILTER (WHERE elsewhere),
    count(*) FILTER (WHERE is_behind_gap OR is_earlier OR is_nowhere OR is_misnumbered)
FROM walked
GROUP BY partition


-- name: walked
-- Part of a WITH: a range of a log in order, each event beside the one before it, in the log and in its partition.
--
-- `place` counts the events since the walk began, so that ids less places tell how many ids are missing between two.
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: topic_id, after, upper, partitions. Identifiers: log. Parameters: before_id, before_at (of the event before
-- the range; null if unknown), walked (the events before it), lanes, lane_ids, numbers, places (arrays of one length: the
-- last event of each partition that is known).
-- Relies on: the primary key of the log.
event AS (
    SELECT
        e.id, e.partition, e.number, e.logged_at,
        e.key IS NOT NULL
            AND e.partition <> ((hashtextextended(e.key, 0) & 9223372036854775807) %% {partitions})::int AS elsewhere,
        row_number() OVER log + %(walked)s::bigint AS place,
        lag(e.id, 1, %(before_id)s::bigint) OVER log AS before_id,
        lag(e.logged_at, 1, %(before_at)s::timestamptz) OVER log AS before_at
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    WINDOW log AS (ORDER BY e.id)
),
beside AS (
    SELECT
        event.*,
        lag(event.id) OVER lane AS lane_id,
        lag(event.number) OVER lane AS lane_number,
        lag(event.place) OVER lane AS lane_place,
        lead(event.id) OVER lane IS NULL AS newest
    FROM event
    WINDOW lane AS (PARTITION BY event.partition ORDER BY event.id)
),
walked AS (
    SELECT
        beside.id, beside.partition, beside.number, beside.logged_at, beside.elsewhere, beside.place, beside.newest,
        beside.before_id, beside.before_at,
        coalesce(beside.lane_number, known.number) AS before_number,
        beside.id - beside.before_id > 1 AS is_behind_gap,
        beside.logged_at < beside.before_at AS is_earlier,
        beside.partition NOT BETWEEN 0 AND {partitions} - 1 AS is_nowhere,
        beside.number - coalesce(beside.lane_number, known.number) - 1 NOT BETWEEN 0
            AND beside.id - coalesce(beside.lane_id, known.id) - (beside.place - coalesce(beside.lane_place, known.place))
            AS is_misnumbered
    FROM beside
    LEFT JOIN unnest(%(lanes)s::int[], %(lane_ids)s::bigint[], %(numbers)s::bigint[], %(places)s::bigint[])
        AS known (partition, id, number, place)
        ON known.partition = beside.partition AND beside.lane_id IS NULL
)


-- name: walk_closely
-- The events of a range of a log that are wrong, and what they should be by the event before them.
--
-- Parts: walked. Parameters: most; before_id, before_at, walked, lanes, lane_ids, numbers, places, as in `walked`.
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
