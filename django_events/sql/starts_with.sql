-- Part of a condition: a text begins with another.
--
-- Literals: value. Identifiers: column.
starts_with({column}, {value})
