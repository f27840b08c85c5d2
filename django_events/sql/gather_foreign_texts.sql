-- Part of a SELECT: texts as one, in UTF-8, and the length of each in bytes; -1 for none.
--
-- Identifiers: name.
string_agg(convert_to({name}, 'UTF8'), ''::bytea),
array_agg(coalesce(octet_length(convert_to({name}, 'UTF8')), -1))
