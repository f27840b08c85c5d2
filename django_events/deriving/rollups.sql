-- name: make
-- The table of a roll-up. Rows are updated often, so pages keep some room, and are cleaned up soon.
--
-- Identifiers: table. Parts: columns.
CREATE TABLE {table} (
    {columns}
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000)


-- name: index
-- The index by which rows of a roll-up are found and read, and each bucket and group has one.
--
-- Identifiers: name, table, keys.
CREATE UNIQUE INDEX {name} ON {table} ({keys})


-- name: bucket
-- Part of `make`: when the bucket begins. The rows of '-infinity' are the groups that are known, and count nothing.
bucket timestamptz NOT NULL


-- name: group
-- Part of `make`: a group. Where an event has none, it is the empty text.
--
-- Identifiers: name.
{name} text COLLATE "C" NOT NULL


-- name: counts
-- Part of `make`: how many events were counted, and of how many a value was none.
count bigint NOT NULL, skipped bigint NOT NULL


-- name: measure
-- Part of `make`: a sum, a minimum or a maximum; null where no event had a number.
--
-- Identifiers: name.
{name} numeric


-- name: drop
-- Drop the table of a roll-up.
--
-- Identifiers: table.
DROP TABLE IF EXISTS {table}


-- name: is_there
-- Whether the table of a roll-up exists.
--
-- Parameters: table.
SELECT to_regclass(quote_ident(%(table)s)) IS NOT NULL


-- name: is_empty
-- Whether nothing is counted in the table of a roll-up.
--
-- Identifiers: table.
SELECT NOT EXISTS (SELECT FROM {table})


-- name: known_groups
-- How many groups of a roll-up are known.
--
-- Identifiers: table.
-- Relies on: (bucket, groups) of the table.
SELECT count(*) FROM {table} WHERE bucket = '-infinity'


-- name: is_full
-- Whether a roll-up has as many groups as it may, and has counted further ones together.
--
-- Literals: most_groups. Identifiers: table. Parts: beyond.
-- Relies on: (bucket, groups) of the table; where there are so many groups, it reads the table until it has found one.
SELECT CASE
    WHEN (SELECT count(*) FROM {table} WHERE bucket = '-infinity') >= {most_groups}
        THEN EXISTS (SELECT FROM {table} AS r WHERE r.bucket > '-infinity' AND {beyond})
    ELSE false
END


-- name: is_beyond
-- Part of `is_full`: whether a row is of the groups that are counted together, as far as one column says.
--
-- Identifiers: column. Literals: beyond.
r.{column} = {beyond}


-- name: stranded
-- The tables of roll-ups that have no row any more.
--
-- Relies on: the catalog's own indexes, the primary key of django_events_rollup.
SELECT c.relname::text
FROM pg_class AS c
JOIN pg_class AS ours ON ours.oid = to_regclass('django_events_rollup') AND ours.relnamespace = c.relnamespace
WHERE c.relkind = 'r'
    AND c.relname ~ '^django_events_rollup_[0-9]+$'
    AND NOT EXISTS (
        SELECT FROM django_events_rollup AS r WHERE c.relname = 'django_events_rollup_' || r.id::text
    )
ORDER BY c.relname


-- name: roles
-- Who may read roll-ups, count in them, and clean them up, by their rights on the table of their rows.
--
-- Answers with the role, whether it may update some column, and whether it may delete.
-- Relies on: the catalog's own indexes.
SELECT pg_get_userbyid(acl.grantee)::text, bool_or(acl.privilege_type = 'UPDATE'), bool_or(acl.privilege_type = 'DELETE')
FROM (
    SELECT c.relowner AS owner, c.relacl AS acl FROM pg_class AS c WHERE c.oid = to_regclass('django_events_rollup')
    UNION ALL
    SELECT c.relowner, a.attacl
    FROM pg_class AS c
    JOIN pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.oid = to_regclass('django_events_rollup')
) AS own
CROSS JOIN LATERAL aclexplode(own.acl) AS acl
WHERE acl.grantee <> 0 AND acl.grantee <> own.owner
GROUP BY acl.grantee
ORDER BY 1


-- name: let_read
-- Let a role read the table of a roll-up.
--
-- Identifiers: table, role.
GRANT SELECT ON {table} TO {role}


-- name: let_fold
-- Let a role fold events into the table of a roll-up.
--
-- Identifiers: table, role.
GRANT INSERT, UPDATE ON {table} TO {role}


-- name: let_delete
-- Let a role delete old buckets of a roll-up.
--
-- Identifiers: table, role.
GRANT DELETE ON {table} TO {role}


-- name: tell_workers
-- Have the workers of a roll-up look anew at how it is registered.
--
-- Parameters: name.
-- Relies on: django_events_consumer is small.
UPDATE django_events_consumer SET revision = revision + 1 WHERE name = %(name)s RETURNING id


-- name: try_path
-- Let PostgreSQL read a jsonpath, and look for it in a value of each kind.
--
-- Parameters: path.
SELECT jsonb_path_query_first(value, %(path)s::jsonpath, jsonb_build_object(), true)
FROM (
    VALUES
        ('null'::jsonb), ('true'), ('1'), ('"text"'), ('[]'), ('[1]'), (jsonb_build_object()), (jsonb_build_object('a', 1))
) AS sample (value)
