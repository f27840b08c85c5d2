-- Part of a SELECT: a column as text in UTF-8, under another name.
--
-- Identifiers: column, name.
{column}::text AS {name}
