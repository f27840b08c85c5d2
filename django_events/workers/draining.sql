-- name: commits
-- How commits wait for the disk in this transaction; changed until its end where a value is given.
--
-- Parameters: value (a setting, or null).
SELECT set_config('synchronous_commit', coalesce(%(value)s, current_setting('synchronous_commit')), true)
