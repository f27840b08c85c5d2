-- name: search_path
-- In which schemas this session looks for tables.
--
-- Relies on: nothing.
SELECT current_setting('search_path')
