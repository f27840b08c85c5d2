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
