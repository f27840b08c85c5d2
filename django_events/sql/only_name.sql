-- Part of a GRANT: a name, quoted.
--
-- Identifiers: name.
{name}
