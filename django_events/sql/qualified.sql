-- Part of a GRANT: a table or a sequence in its schema.
--
-- Identifiers: schema, name.
{schema}.{name}
