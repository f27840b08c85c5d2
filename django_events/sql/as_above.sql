-- Give a new table of the log the rights and the owner of the one above it, whoever made it.
--
-- So readers go on reading a topic by its own table, and whoever else makes segments may attach them. Rights first:
-- its maker can't give them any more when it is somebody else's.
-- Literals: above, table (names).
-- Relies on: the catalog's own indexes.
DO $block$
DECLARE
    above record;
    given record;
BEGIN
    SELECT c.relowner, c.relacl INTO above FROM pg_class AS c WHERE c.oid = to_regclass({above});
    FOR given IN SELECT acl.* FROM aclexplode(above.relacl) AS acl WHERE acl.grantee <> above.relowner LOOP
        EXECUTE format(
            'GRANT %%s ON %%s TO %%s%%s',
            given.privilege_type,
            to_regclass({table}),
            CASE WHEN given.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END,
            CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
    IF above.relowner <> (SELECT c.relowner FROM pg_class AS c WHERE c.oid = to_regclass({table})) THEN
        EXECUTE format('ALTER TABLE %%s OWNER TO %%I', to_regclass({table}), pg_get_userbyid(above.relowner));
    END IF;
END
$block$
