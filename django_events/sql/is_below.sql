-- Part of a condition: a column is below a value.
--
-- Literals: value. Identifiers: column.
{column} < {value}
