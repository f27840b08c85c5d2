-- name: walk
-- Walk a range of a log: how many events each partition has there, its last one, and how many of them are wrong.
--
-- Parts: walked. Parameters: before_id, before_at, walked, compacted_until, prior_partitions, prior_ids, prior_numbers,
-- prior_ordinals, as in `walked`.
-- Relies on: the primary key of the log.
WITH {walked}
SELECT
    partition, count(*), max(id), max(number) FILTER (WHERE newest), max(ordinal), max(logged_at) FILTER (WHERE newest),
    count(*) FILTER (WHERE elsewhere),
    count(*) FILTER (WHERE is_behind_gap OR is_earlier OR is_nowhere OR is_misnumbered)
FROM walked
GROUP BY partition


-- name: walked
-- Part of a WITH: a range of a log in order, each event beside the one before it, in the log and in its partition.
--
-- `before` is the event before it in the log, `prior` the one before it in its partition. `ordinal` counts the events
-- since the walk began, so that ids less ordinals tell how many ids are missing between two.
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: topic_id, after, upper, partitions. Identifiers: log. Parameters: before_id, before_at (of the event before
-- the range; null if unknown), walked (the events before it), compacted_until (up to where ids have gaps),
-- prior_partitions, prior_ids, prior_numbers, prior_ordinals (arrays of one length: the last event of each partition that
-- is known).
-- Relies on: the primary key of the log.
event AS (
    SELECT
        e.id, e.partition, e.number, e.logged_at,
        e.key IS NOT NULL
            AND e.partition <> ((hashtextextended(e.key, 0) & 9223372036854775807) %% {partitions})::int AS elsewhere,
        row_number() OVER log + %(walked)s::bigint AS ordinal,
        lag(e.id, 1, %(before_id)s::bigint) OVER log AS before_id,
        lag(e.logged_at, 1, %(before_at)s::timestamptz) OVER log AS before_at
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    WINDOW log AS (ORDER BY e.id)
),
beside AS (
    SELECT
        event.*,
        lag(event.id) OVER of_partition AS prior_id,
        lag(event.number) OVER of_partition AS prior_number,
        lag(event.ordinal) OVER of_partition AS prior_ordinal,
        lead(event.id) OVER of_partition IS NULL AS newest
    FROM event
    WINDOW of_partition AS (PARTITION BY event.partition ORDER BY event.id)
),
walked AS (
    SELECT
        beside.id, beside.partition, beside.number, beside.logged_at, beside.elsewhere, beside.ordinal, beside.newest,
        beside.before_id, beside.before_at,
        coalesce(beside.prior_number, known.number) AS before_number,
        beside.id - greatest(beside.before_id, %(compacted_until)s::bigint) > 1 AND beside.before_id IS NOT NULL AS is_behind_gap,
        beside.logged_at < beside.before_at AS is_earlier,
        beside.partition NOT BETWEEN 0 AND {partitions} - 1 AS is_nowhere,
        beside.number - coalesce(beside.prior_number, known.number) - 1 NOT BETWEEN 0
            AND beside.id - coalesce(beside.prior_id, known.id)
                - (beside.ordinal - coalesce(beside.prior_ordinal, known.ordinal))
            AS is_misnumbered
    FROM beside
    LEFT JOIN unnest(
        %(prior_partitions)s::int[], %(prior_ids)s::bigint[], %(prior_numbers)s::bigint[], %(prior_ordinals)s::bigint[]
    ) AS known (partition, id, number, ordinal)
        ON known.partition = beside.partition AND beside.prior_id IS NULL
)


-- name: walk_closely
-- The events of a range of a log that are wrong, and what they should be by the event before them.
--
-- Parts: walked. Parameters: most; before_id, before_at, walked, compacted_until, prior_partitions, prior_ids,
-- prior_numbers, prior_ordinals, as in `walked`.
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
