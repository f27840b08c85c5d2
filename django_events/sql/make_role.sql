-- Make a role that nobody logs in with, unless there is one of this name.
--
-- Identifiers: role. Literals: name.
-- Relies on: the catalog's own indexes.
DO $block$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
END
$block$
