-- name: forget_buckets
-- Delete some rows of a roll-up whose bucket is older than it keeps. Those of known groups stay.
--
-- Parameters: age (an interval), limit. Identifiers: table. Answers with a row for each.
-- Relies on: (bucket, groups) of the table.
DELETE FROM {table} AS t
USING (
    SELECT ctid
    FROM {table}
    WHERE bucket > '-infinity' AND bucket < statement_timestamp() - %(age)s::interval
    ORDER BY bucket
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS old
WHERE t.ctid = old.ctid
RETURNING 1


-- name: lock
-- The row of a roll-up, locked until the transaction ends: nothing is folded into its table meanwhile.
--
-- Parameters: name.
-- Relies on: django_events_rollup (name).
SELECT id FROM django_events_rollup WHERE name = %(name)s FOR UPDATE


-- name: forget_groups
-- Delete the groups of a roll-up that no bucket has any more.
--
-- Identifiers: table. Parts: same.
-- Relies on: (bucket, groups) of the table; a hash of it otherwise.
DELETE FROM {table} AS t
WHERE t.bucket = '-infinity' AND NOT EXISTS (SELECT FROM {table} AS r WHERE r.bucket > '-infinity' AND {same})
RETURNING 1


-- name: note_room
-- A roll-up has room for groups again. If it is used up, that is told anew.
--
-- Parameters: name.
-- Relies on: django_events_rollup (name).
UPDATE django_events_rollup SET full_since = NULL WHERE name = %(name)s AND full_since IS NOT NULL RETURNING id


-- name: is_same_group
-- Part of a condition on two rows of a roll-up: they are of the same group, as far as one column says.
--
-- Identifiers: column.
r.{column} = t.{column}
