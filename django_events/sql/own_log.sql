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
