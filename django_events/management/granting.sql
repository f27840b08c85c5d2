-- name: grant
-- Give rights on something to a role.
--
-- Parts: rights, things, role.
GRANT {rights} ON {things} TO {role}


-- name: grant_log
-- Give rights on the log to a role: the root, each topic's own table, and their segments. New ones get them from these.
--
-- Parts: rights, log (a name with its schema, as a literal), name (the role's), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
DECLARE
    log regclass;
BEGIN
    FOR log IN SELECT relid FROM pg_partition_tree({log}::regclass) LOOP
        EXECUTE format('GRANT {rights} ON %%s TO %%I', log, {name});
    END LOOP;
END
{quote}


-- name: own_log
-- Give the log back to the owner of the tables: the root, each topic's own table, and their segments.
--
-- Only what is another's is altered: that takes the strongest lock, which stops all who read the log until the end.
-- Parts: log (a name with its schema, as a literal), name (the owner's), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
DECLARE
    log regclass;
BEGIN
    FOR log IN
        SELECT tree.relid
        FROM pg_partition_tree({log}::regclass) AS tree
        JOIN pg_class AS c ON c.oid = tree.relid
        WHERE pg_get_userbyid(c.relowner) <> {name}
    LOOP
        EXECUTE format('ALTER TABLE %%s OWNER TO %%I', log, {name});
    END LOOP;
END
{quote}


-- name: revoke
-- Take rights on something from roles.
--
-- Parts: rights, things, roles.
REVOKE {rights} ON {things} FROM {roles}


-- name: revoke_log
-- Take all rights on the log from a role: on the root, each topic's own table, and their segments.
--
-- Parts: log (a name with its schema, as a literal), role (a literal), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
DECLARE
    log regclass;
BEGIN
    FOR log IN SELECT relid FROM pg_partition_tree({log}::regclass) LOOP
        EXECUTE format('REVOKE ALL ON %%s FROM %%I', log, {role});
    END LOOP;
END
{quote}


-- name: prove_revoked
-- End in an error if the role has a right of its own on any of our tables, columns, sequences or functions.
--
-- Parts: role, schema (literals), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
DECLARE
    kept text;
BEGIN
    SELECT string_agg(DISTINCT format('%%s on %%s, given by %%I', acl.privilege_type, own.name, pg_get_userbyid(acl.grantor)), '; ')
    INTO kept
    FROM (
        SELECT c.relname AS name, c.relnamespace AS home, c.relacl AS acl FROM pg_class AS c
        UNION ALL
        SELECT c.relname, c.relnamespace, a.attacl FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
        UNION ALL
        SELECT p.proname, p.pronamespace, p.proacl FROM pg_proc AS p
    ) AS own
    CROSS JOIN aclexplode(own.acl) AS acl
    WHERE own.home = (SELECT oid FROM pg_namespace WHERE nspname = {schema})
        AND own.name LIKE 'django\_events\_%%'
        AND acl.grantee = (SELECT oid FROM pg_roles WHERE rolname = {role});
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION 'Nothing was revoked, because a right would be left: %%.', kept
            USING HINT = 'The role that gave it takes it back, or a superuser who says REVOKE … GRANTED BY that role.';
    END IF;
END
{quote}


-- name: revoke_role
-- End that a role is a member of another.
--
-- Parts: role, of.
REVOKE {role} FROM {of}


-- name: prove_rights
-- End in an error if the role, or PUBLIC, may do what would let its code be run by others.
--
-- A role that makes things in a schema of the search_path, owns a table, or makes a schema with the name of a login, has its
-- functions, operators and triggers run by who looks there. REVOKE only warns where another role gave the right.
-- Parts: role, owner, schema (literals), path (an array of schemas, as a literal), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
DECLARE
    wrong text;
    trusted boolean := {role} = {owner} OR (SELECT rolsuper FROM pg_roles WHERE rolname = {role});
BEGIN
    SELECT string_agg(found.what, '; ' ORDER BY found.what) INTO wrong
    FROM (
        SELECT format('%%s may create in the schema %%I: its owner %%I, or a superuser, says REVOKE CREATE ON SCHEMA %%I FROM %%s',
            grantee.name, s.nspname, pg_get_userbyid(s.nspowner), s.nspname, grantee.name) AS what
        FROM pg_namespace AS s
        CROSS JOIN LATERAL (
            SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS name
            FROM aclexplode(s.nspacl) AS acl
            WHERE acl.privilege_type = 'CREATE'
                AND (acl.grantee = 0 OR (NOT trusted AND pg_has_role({role}, acl.grantee, 'MEMBER')))
        ) AS grantee
        WHERE s.nspname = ANY({path})
        UNION ALL
        SELECT format('%%I may create schemas: say REVOKE CREATE ON DATABASE %%I FROM …', {role}, current_database())
        WHERE NOT trusted AND has_database_privilege({role}, current_database(), 'CREATE')
        UNION ALL
        SELECT format('%%I owns %%s: say ALTER TABLE … OWNER TO %%I', {role}, c.oid::regclass, {owner})
        FROM pg_class AS c
        WHERE NOT trusted AND c.relnamespace = {schema}::regnamespace AND c.relname LIKE 'django\_events\_%%'
            AND pg_has_role({role}, c.relowner, 'MEMBER')
    ) AS found;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'Nothing was granted, because code of this role would be run by others: %%.', wrong;
    END IF;
END
{quote}


-- name: make_role
-- Make a role without login, unless there is one of this name.
--
-- Parts: role, name (the same as a literal), quote (a dollar quote).
-- Relies on: the catalog's own indexes.
DO {quote}
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END
{quote}


-- name: grant_role
-- Give the rights of one role to another.
--
-- Parts: role, to.
GRANT {role} TO {to}


-- name: home
-- Where the tables of events are: the schema, its database, who owns them, the owner's functions that publish, that look
-- a topic up, that change segments and that claim events, with their arguments, the tables of roll-ups, and the schemas
-- of the search_path.
--
-- Relies on: the catalog's own indexes.
SELECT
    n.nspname, current_database(), pg_get_userbyid(c.relowner),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours !~ '_(segment|segments|rewritten|topic_id|claim|ack|nack|extend)\('),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours ~ '_topic_id\('),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours ~ '_(segment|segments|rewritten)\('),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours ~ '_(claim|ack|nack|extend)\('),
    ARRAY(
        SELECT own.relname
        FROM pg_class AS own
        WHERE own.relnamespace = n.oid AND own.relkind = 'r' AND own.relname ~ '^django_events_rollup_[0-9]+$'
        ORDER BY own.relname
    )::text[],
    ARRAY(SELECT name FROM unnest(current_schemas(false)) AS name WHERE NOT starts_with(name, 'pg_'))::text[]
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT format('%%I.%%I(%%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes))
        FROM pg_proc AS p
        WHERE p.pronamespace = n.oid AND p.proowner = c.relowner AND p.proname IN (
            'django_events_open', 'django_events_checked', 'django_events_publish', 'django_events_schedule',
            'django_events_is_new', 'django_events_topic_id',
            'django_events_make_segment', 'django_events_cut_segment', 'django_events_drop_segment',
            'django_events_rewrite_segments', 'django_events_swap_segments', 'django_events_analyze_rewritten',
            'django_events_claim', 'django_events_ack', 'django_events_nack', 'django_events_extend'
        )
        ORDER BY p.proname
    ) AS signatures
) AS f
WHERE c.oid = to_regclass('django_events_topic')
