-- name: set_for_session
-- Change settings of the server until the connection is closed, as `set_locally` does until a transaction ends.
--
-- Waiting for the disk is only ever switched on: a site that waits for its standbys keeps doing so.
-- Parameters: names, values (arrays of one length).
SELECT
    set_config(
        name,
        CASE WHEN name = 'synchronous_commit' AND current_setting(name) <> 'off' THEN current_setting(name) ELSE value END,
        false
    )
FROM unnest(%(names)s::text[], %(values)s::text[]) AS setting (name, value)


-- name: by_index
-- Settings for the prepared statements behind it in the same message, which is a transaction: they are planned once, by
-- index, and fail where row-level security would hide rows from this role.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCAL row_security = off;
SET LOCAL plan_cache_mode = force_generic_plan;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off


-- name: deallocate
-- Let the session forget a prepared statement.
--
-- Identifiers: name.
DEALLOCATE {name}
