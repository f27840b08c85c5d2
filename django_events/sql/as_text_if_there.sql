-- Part of a SELECT from events `e`: JSON as text, null where it is not made into text; and whether there is one.
--
-- Identifiers: column, name, there. Parts: text.
{text} AS {name}, e.{column} IS NOT NULL AS {there}
