-- Part of a condition: a column has a value or is above it.
--
-- Literals: value. Identifiers: column.
{column} >= {value}
