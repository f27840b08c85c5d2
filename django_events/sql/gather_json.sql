-- Part of a SELECT: JSON as one text, and the length of each in bytes; -1 for none, -2 for one that is not made into text.
--
-- Identifiers: name, there (of the column that says whether there is one).
string_agg({name}, ''), array_agg(coalesce(octet_length({name}), CASE WHEN {there} THEN -2 ELSE -1 END))
