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
