-- How large the database is, and where the server keeps it, if this role may see that.
--
-- Relies on: the files of the database, and the views of the server.
SELECT
    pg_database_size(current_database()),
    (SELECT s.setting FROM pg_settings AS s WHERE s.name = 'data_directory'),
    extract(epoch FROM pg_postmaster_start_time())::bigint
