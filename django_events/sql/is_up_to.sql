-- Part of a condition: a column has a value or is below it.
--
-- Literals: value. Identifiers: column.
{column} <= {value}
