-- Part of a condition: a column is above a value.
--
-- Literals: value. Identifiers: column.
{column} > {value}
