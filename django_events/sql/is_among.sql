-- Part of a condition: a text is one of several.
--
-- Literals: values. Identifiers: column.
{column} = ANY({values})
