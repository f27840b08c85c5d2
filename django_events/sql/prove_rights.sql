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
