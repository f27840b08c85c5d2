-- Part of a SELECT: texts as one, and the length of each in bytes; -1 for none.
--
-- Identifiers: name.
string_agg({name}, ''), array_agg(coalesce(octet_length({name}), -1))
