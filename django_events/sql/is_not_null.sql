-- Part of a condition: a column has a value.
--
-- Identifiers: column.
{column} IS NOT NULL
