-- name: log_latencies
-- How many seconds the events of a topic took from being published to being in the log, by the database's clock alone:
-- their number, the average, and the percentiles at these shares. It reads the whole log.
--
-- Parameters: shares (an array of numbers from 0 to 1). Identifiers: log.
-- Relies on: nothing; it is for logs that were made to measure with.
SELECT
    count(*) AS events,
    avg(took.seconds)::float8 AS average,
    percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY took.seconds) AS percentiles
FROM {log} AS e
CROSS JOIN LATERAL (SELECT extract(epoch FROM e.logged_at - e.published_at)::float8 AS seconds) AS took
