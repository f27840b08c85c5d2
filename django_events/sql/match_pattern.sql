-- Part of a condition on an event `e`: a column matches one of these regular expressions.
--
-- Identifiers: column. Literals: expressions.
e.{column} ~ ANY({expressions}::text[])
