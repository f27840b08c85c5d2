-- name: backend
-- The server's process that answers.
--
-- Relies on: nothing.
SELECT pg_backend_pid()
