-- Part of a SELECT: a column under another name.
--
-- Identifiers: column, name.
{column} AS {name}
