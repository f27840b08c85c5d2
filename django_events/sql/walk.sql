-- Walk a range of a log: how many events each partition has there, its last one, and how many of them are wrong.
--
-- Parts: walked. Parameters: before_id, before_at, walked, lanes, lane_ids, numbers, places, as in walked.sql.
-- Relies on: the primary key of the log.
WITH {walked}
SELECT
    partition, count(*), max(id), max(number) FILTER (WHERE newest), max(place), max(logged_at) FILTER (WHERE newest),
    count(*) FILTER (WHERE elsewhere),
    count(*) FILTER (WHERE is_behind_gap OR is_earlier OR is_nowhere OR is_misnumbered)
FROM walked
GROUP BY partition
