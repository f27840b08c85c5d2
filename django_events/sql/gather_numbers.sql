-- Part of a SELECT: numbers as an array.
--
-- Identifiers: name.
array_agg({name})
