-- What lets a role other than the owner of the tables have code run by all who use them: of what kind, what it is, and
-- the SQL that ends it.
--
-- Superusers and the owner of the database are trusted. "$user" is looked for as it is written in the search_path.
-- Relies on: the catalog's own indexes.
WITH home AS (
    SELECT c.relnamespace AS schema, c.relowner AS owner
    FROM pg_class AS c
    WHERE c.oid = to_regclass('django_events_topic')
),
trusted AS (
    SELECT r.oid
    FROM pg_roles AS r, home
    WHERE r.rolsuper OR r.oid = home.owner OR r.rolname = 'pg_database_owner'
        OR r.oid = (SELECT d.datdba FROM pg_database AS d WHERE d.datname = current_database())
),
path AS (
    SELECT s.oid, s.nspname, s.nspowner, s.nspacl
    FROM pg_namespace AS s, home
    WHERE (s.oid = home.schema OR s.nspname = ANY(current_schemas(false))) AND NOT starts_with(s.nspname, 'pg_')
),
ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner
    FROM pg_class AS c, home
    WHERE c.relnamespace = home.schema AND starts_with(c.relname, 'django_events_') AND c.relkind IN ('r', 'p', 'S', 'v')
),
functions AS (
    SELECT p.oid, p.proname, p.proowner, p.proacl, p.prosecdef, p.pronamespace
    FROM pg_proc AS p
    JOIN path ON path.oid = p.pronamespace
    WHERE p.proname IN (
        'django_events_open', 'django_events_checked', 'django_events_publish', 'django_events_schedule',
        'django_events_is_new',
        'django_events_make_segment', 'django_events_cut_segment', 'django_events_drop_segment', 'django_events_log_of',
        'django_events_make_segment_of', 'django_events_cut_segment_of', 'django_events_drop_segment_of'
    )
)
SELECT 'schema', format('%%s may create in the schema %%I', role.name, path.nspname),
    format('REVOKE CREATE ON SCHEMA %%I FROM %%s', path.nspname, role.name)
FROM path
CROSS JOIN LATERAL aclexplode(path.nspacl) AS acl
CROSS JOIN LATERAL (
    SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
) AS role
WHERE acl.privilege_type = 'CREATE' AND acl.grantee <> path.nspowner AND acl.grantee NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'schema', format('%%I owns the schema %%I', pg_get_userbyid(path.nspowner), path.nspname),
    format('ALTER SCHEMA %%I OWNER TO %%I', path.nspname, pg_get_userbyid(home.owner))
FROM path, home
WHERE path.nspowner NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'database', format('%%s may create schemas, also with the name of a login, which comes first in the search_path', role.name),
    format('REVOKE CREATE ON DATABASE %%I FROM %%s', d.datname, role.name)
FROM pg_database AS d
CROSS JOIN LATERAL aclexplode(d.datacl) AS acl
CROSS JOIN LATERAL (
    SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
) AS role
WHERE d.datname = current_database() AND acl.privilege_type = 'CREATE'
    AND acl.grantee NOT IN (SELECT oid FROM trusted)
    AND strpos(current_setting('search_path'), '$user') > 0
UNION ALL
SELECT 'function', format('The function %%s of %%I has the name of one of ours', f.oid::regprocedure, pg_get_userbyid(f.proowner)),
    format('DROP FUNCTION %%s', f.oid::regprocedure)
FROM functions AS f, home
WHERE f.pronamespace <> home.schema OR f.proowner <> home.owner
UNION ALL
SELECT 'function', format('PUBLIC may call %%s, which has the rights of its owner', f.oid::regprocedure),
    format('REVOKE EXECUTE ON FUNCTION %%s FROM PUBLIC', f.oid::regprocedure)
FROM functions AS f
WHERE f.prosecdef AND (f.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(f.proacl) AS acl WHERE acl.grantee = 0))
UNION ALL
SELECT 'owner', format('%%s belongs to %%I', min(ours.oid::regclass::text), pg_get_userbyid(ours.relowner))
        || CASE count(*) WHEN 1 THEN '' ELSE format(', and %%s more of our tables', count(*) - 1) END,
    format('REASSIGN OWNED, or ALTER TABLE … OWNER TO %%I', pg_get_userbyid(home.owner))
FROM ours, home
WHERE ours.relowner <> home.owner
GROUP BY ours.relowner, home.owner
UNION ALL
SELECT 'code', format('The trigger %%I on %%s, which is not ours, calls %%s of %%I', t.tgname, ours.oid::regclass, p.oid::regproc, pg_get_userbyid(p.proowner)),
    format('DROP TRIGGER %%I ON %%s', t.tgname, ours.oid::regclass)
FROM ours
JOIN pg_trigger AS t ON t.tgrelid = ours.oid AND NOT t.tgisinternal AND t.tgparentid = 0
JOIN pg_proc AS p ON p.oid = t.tgfoid
CROSS JOIN home
WHERE NOT starts_with(p.proname, 'pgtrigger_') OR p.proowner <> home.owner OR p.pronamespace <> home.schema
UNION ALL
SELECT 'code', format('The policy %%I on %%s is not ours', y.polname, ours.oid::regclass),
    format('DROP POLICY %%I ON %%s', y.polname, ours.oid::regclass)
FROM ours
JOIN pg_policy AS y ON y.polrelid = ours.oid
UNION ALL
SELECT 'code', format('The rule %%I on %%s is not ours', w.rulename, ours.oid::regclass),
    format('DROP RULE %%I ON %%s', w.rulename, ours.oid::regclass)
FROM ours
JOIN pg_rewrite AS w ON w.ev_class = ours.oid AND ours.relkind IN ('r', 'p')
ORDER BY 1, 2
