-- Change settings of the server until this transaction ends; answers with what they were.
--
-- Waiting for the disk is only ever switched on: a site that waits for its standbys keeps doing so.
-- Parameters: names, values (arrays of one length).
SELECT
    name,
    current_setting(name),
    set_config(
        name,
        CASE WHEN name = 'synchronous_commit' AND current_setting(name) <> 'off' THEN current_setting(name) ELSE value END,
        true
    )
FROM unnest(%(names)s::text[], %(values)s::text[]) AS setting (name, value)
