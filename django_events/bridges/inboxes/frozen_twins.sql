-- name: copying
-- The sessions of this role in which inboxes send rows now, with the beginning of the transaction and the bytes that came.
--
-- Of the sessions of other roles the server tells nothing. Parameters: application.
-- Relies on: the views of the server.
SELECT a.pid, a.xact_start, p.bytes_processed
FROM pg_stat_progress_copy AS p
JOIN pg_stat_activity AS a ON a.pid = p.pid
WHERE
    p.datname = current_database()
    AND p.command = 'COPY FROM'
    AND a.application_name = %(application)s
    AND a.pid <> pg_backend_pid()


-- name: end_copying
-- End one of these sessions if it still is where it was; answers with a row for it, and whether it could be told to end.
--
-- Parameters: application, pid, began (when its transaction did), came (bytes).
-- Relies on: the views of the server.
SELECT a.pid, pg_terminate_backend(a.pid)
FROM pg_stat_progress_copy AS p
JOIN pg_stat_activity AS a ON a.pid = p.pid
WHERE
    p.datname = current_database()
    AND p.command = 'COPY FROM'
    AND a.application_name = %(application)s
    AND a.pid = %(pid)s
    AND a.xact_start = %(began)s
    AND p.bytes_processed = %(came)s
