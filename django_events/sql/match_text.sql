-- Part of a condition on an event `e`: a column is one of these texts.
--
-- Identifiers: column. Literals: texts.
e.{column} = ANY({texts}::text[])
