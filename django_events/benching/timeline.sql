-- name: analyze_log
-- Gather the statistics of one topic's log, as autovacuum does after a while.
--
-- Identifiers: log.
ANALYZE {log}
