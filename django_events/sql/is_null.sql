-- Part of a condition: a column has no value.
--
-- Identifiers: column.
{column} IS NULL
