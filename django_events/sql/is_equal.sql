-- Part of a condition: a column has a value.
--
-- Literals: value. Identifiers: column.
{column} = {value}
