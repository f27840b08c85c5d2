-- Part of a SELECT: strings of bytes as one, and the length of each; -1 for none.
--
-- Identifiers: name.
string_agg({name}, ''::bytea), array_agg(coalesce(octet_length({name}), -1))
