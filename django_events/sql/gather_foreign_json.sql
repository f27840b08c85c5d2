-- Part of a SELECT: as gather_json.sql, in UTF-8, of a server that keeps texts in another encoding.
--
-- Identifiers: name, there (of the column that says whether there is one).
string_agg(convert_to({name}, 'UTF8'), ''::bytea),
array_agg(coalesce(octet_length(convert_to({name}, 'UTF8')), CASE WHEN {there} THEN -2 ELSE -1 END))
