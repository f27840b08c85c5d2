-- name: served
-- A table by its name: its schema, kind and owner, whether this role owns it, whether rows are hidden by its policies, how
-- many others inherit from it, what refers to its rows, which views and publications name it, and a fingerprint of its
-- columns, constraints, indexes and triggers.
--
-- Parameters: table. Answers with nothing if there is none.
-- Relies on: the catalog's own indexes.
SELECT
    c.relname::text, n.nspname::text, c.relkind::text, pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE'),
    c.relrowsecurity,
    (SELECT count(*) FROM pg_inherits AS i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid),
    ARRAY(
        SELECT format('%%s of %%s', f.conname, f.conrelid::regclass) FROM pg_constraint AS f
        WHERE f.confrelid = c.oid AND f.contype = 'f'
        ORDER BY 1
    ),
    ARRAY(
        SELECT DISTINCT w.ev_class::regclass::text
        FROM pg_depend AS d
        JOIN pg_rewrite AS w ON w.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = c.oid AND w.ev_class <> c.oid
        ORDER BY 1
    ),
    ARRAY(
        SELECT p.pubname::text
        FROM pg_publication_rel AS r
        JOIN pg_publication AS p ON p.oid = r.prpubid
        WHERE r.prrelid = c.oid
        ORDER BY 1
    ),
    md5(concat_ws(
        E'\n',
        n.nspname,
        c.relname,
        (
            SELECT string_agg(
                concat_ws(
                    ' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                    a.attcollation, pg_get_expr(d.adbin, d.adrelid)
                ),
                E'\n' ORDER BY a.attnum
            )
            FROM pg_attribute AS a
            LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ),
        (
            SELECT string_agg(f.conname || ' ' || pg_get_constraintdef(f.oid), E'\n' ORDER BY f.conname)
            FROM pg_constraint AS f
            WHERE f.conrelid = c.oid
        ),
        (SELECT string_agg(pg_get_indexdef(i.indexrelid), E'\n' ORDER BY i.indexrelid) FROM pg_index AS i WHERE i.indrelid = c.oid),
        (
            SELECT string_agg(pg_get_triggerdef(t.oid), E'\n' ORDER BY t.tgname)
            FROM pg_trigger AS t
            WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
        )
    ))
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(quote_ident(%(table)s))


-- name: may_create
-- Whether this role may make a schema.
SELECT has_database_privilege(current_database(), 'CREATE')


-- name: who
-- This role and its database.
SELECT current_user::text, current_database()::text


-- name: make_schema
-- The schema of a new table.
--
-- Identifiers: schema.
CREATE SCHEMA {schema}


-- name: make
-- An empty table like another one, without its constraints and indexes.
--
-- Identifiers: shadow, served (each with its schema).
CREATE TABLE {shadow} (LIKE {served} INCLUDING ALL EXCLUDING CONSTRAINTS EXCLUDING INDEXES)


-- name: complete
-- Give a new table the constraints, the indexes and the storage options of the one that it is like, by the same names.
--
-- What the catalog prints names the table as it is looked up; run while the new one comes first, it is about that one.
-- Foreign keys refer to the tables that the other one's refer to. Literals: schema, table (the name of both).
-- Relies on: the catalog's own indexes.
DO $$
DECLARE
    served regclass := to_regclass(quote_ident({table}));
    path text := current_setting('search_path');
    commands text[];
    command text;
BEGIN
    SELECT array_agg(made.command ORDER BY made.rank, made.name) INTO commands
    FROM (
        SELECT
            CASE f.contype WHEN 'f' THEN 3 ELSE 1 END AS rank,
            f.conname AS name,
            format('ALTER TABLE %%I ADD CONSTRAINT %%I %%s', {table}, f.conname, pg_get_constraintdef(f.oid)) AS command
        FROM pg_constraint AS f
        WHERE f.conrelid = served AND f.contype IN ('p', 'u', 'x', 'c', 'f')
        UNION ALL
        SELECT 2, c.relname, pg_get_indexdef(i.indexrelid, 0, true)
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid
        WHERE i.indrelid = served
            AND NOT EXISTS (SELECT FROM pg_constraint AS f WHERE f.conindid = i.indexrelid AND f.contype IN ('p', 'u', 'x'))
        UNION ALL
        SELECT 4, '', format('ALTER TABLE %%I SET (%%s)', {table}, array_to_string(c.reloptions, ', '))
        FROM pg_class AS c
        WHERE c.oid = served AND c.reloptions IS NOT NULL
        UNION ALL
        SELECT 5, '', format('COMMENT ON TABLE %%I IS %%L', {table}, obj_description(served, 'pg_class'))
        WHERE obj_description(served, 'pg_class') IS NOT NULL
    ) AS made;
    PERFORM set_config('search_path', concat_ws(', ', quote_ident({schema}), nullif(path, '')), true);
    FOREACH command IN ARRAY coalesce(commands, ARRAY[]::text[]) LOOP
        EXECUTE command;
    END LOOP;
    PERFORM set_config('search_path', path, true);
END
$$


-- name: drop
-- The schema of a new table, with the table.
--
-- Identifiers: schema.
DROP SCHEMA IF EXISTS {schema} CASCADE


-- name: is_there
-- Whether a schema has a table.
--
-- Parameters: table, schema.
-- Relies on: the catalog's own indexes.
SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) IS NOT NULL


-- name: analyze
-- Have the server look at a new table.
--
-- Identifiers: table (with its schema).
ANALYZE {table}


-- name: lead_to
-- Look for tables in a schema first, until this transaction ends; answers with where they are looked for otherwise.
--
-- Parameters: schema.
SELECT
    current_setting('search_path'),
    set_config(
        'search_path', concat_ws(', ', quote_ident(%(schema)s), nullif(current_setting('search_path'), '')), true
    )


-- name: lead_back
-- Look for tables where they were looked for before.
--
-- Parameters: path.
SELECT set_config('search_path', %(path)s, true)


-- name: check_at_once
-- Have each statement of this transaction check foreign keys, instead of its commit.
SET CONSTRAINTS ALL IMMEDIATE


-- name: change_over
-- Drop a table, and put the one of the same name in another schema in its place, which is dropped then.
--
-- Rights, triggers and the sequence of a serial column are taken over from the former one. Sessions wait for the lock, and
-- find the new one when they have it. Literals: schema, table (the name of both).
-- Relies on: the catalog's own indexes.
DO $$
DECLARE
    served regclass := to_regclass(quote_ident({table}));
    before text[];
    behind text[];
    command text;
    home text;
BEGIN
    SELECT n.nspname INTO home FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = served;
    EXECUTE format('LOCK TABLE %%s IN ACCESS EXCLUSIVE MODE', served);
    WITH serial AS (
        SELECT format('%%I.%%I', n.nspname, s.relname) AS sequence, a.attname
        FROM pg_depend AS d
        JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_namespace AS n ON n.oid = s.relnamespace
        JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_class'::regclass AND d.refobjid = served AND d.deptype = 'a'
    )
    SELECT
        array_agg(format('ALTER SEQUENCE %%s OWNED BY NONE', serial.sequence)),
        array_agg(format('ALTER SEQUENCE %%s OWNED BY %%I.%%I.%%I', serial.sequence, home, {table}, serial.attname))
    INTO before, behind
    FROM serial;
    behind := behind || ARRAY(
        SELECT made.command
        FROM (
            SELECT 1 AS rank, format('ALTER TABLE %%I.%%I OWNER TO %%I', home, {table}, pg_get_userbyid(c.relowner)) AS command
            FROM pg_class AS c
            WHERE c.oid = served AND pg_get_userbyid(c.relowner) <> current_user
            UNION ALL
            SELECT 2, format(
                'GRANT %%s ON TABLE %%I.%%I TO %%s%%s', acl.privilege_type, home, {table},
                CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END,
                CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
            )
            FROM pg_class AS c
            CROSS JOIN LATERAL aclexplode(c.relacl) AS acl
            WHERE c.oid = served
            UNION ALL
            SELECT 3, format(
                'GRANT %%s (%%I) ON TABLE %%I.%%I TO %%s%%s', acl.privilege_type, a.attname, home, {table},
                CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END,
                CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
            )
            FROM pg_attribute AS a
            CROSS JOIN LATERAL aclexplode(a.attacl) AS acl
            WHERE a.attrelid = served AND NOT a.attisdropped
            UNION ALL
            SELECT 4, pg_get_triggerdef(t.oid) FROM pg_trigger AS t WHERE t.tgrelid = served AND NOT t.tgisinternal
            UNION ALL
            SELECT 5, format('ALTER TABLE %%I.%%I DISABLE TRIGGER %%I', home, {table}, t.tgname)
            FROM pg_trigger AS t
            WHERE t.tgrelid = served AND NOT t.tgisinternal AND t.tgenabled = 'D'
            UNION ALL
            SELECT 6, format('COMMENT ON TRIGGER %%I ON %%I.%%I IS %%L', t.tgname, home, {table}, obj_description(t.oid, 'pg_trigger'))
            FROM pg_trigger AS t
            WHERE t.tgrelid = served AND NOT t.tgisinternal AND obj_description(t.oid, 'pg_trigger') IS NOT NULL
        ) AS made
        ORDER BY made.rank
    );
    FOREACH command IN ARRAY coalesce(before, ARRAY[]::text[]) LOOP
        EXECUTE command;
    END LOOP;
    EXECUTE format('DROP TABLE %%s', served);
    EXECUTE format('ALTER TABLE %%I.%%I SET SCHEMA %%I', {schema}, {table}, home);
    FOREACH command IN ARRAY coalesce(behind, ARRAY[]::text[]) LOOP
        EXECUTE command;
    END LOOP;
    EXECUTE format('DROP SCHEMA %%I', {schema});
END
$$
