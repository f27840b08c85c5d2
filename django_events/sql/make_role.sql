-- Make a role that nobody logs in with, unless there is one of this name.
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
