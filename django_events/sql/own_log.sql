-- Make the log a role's own: the root, each topic's own table, and their segments. New ones get its owner from these.
--
-- Literals: log (a name with its schema), name (the role's).
-- Relies on: the catalog's own indexes.
DO $block$
DECLARE
    log regclass;
BEGIN
    FOR log IN SELECT relid FROM pg_partition_tree({log}::regclass) LOOP
        EXECUTE format('ALTER TABLE %%s OWNER TO %%I', log, {name});
    END LOOP;
END
$block$
