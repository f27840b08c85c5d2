-- Part of a SELECT: a JSON column as text, and null where it is not small.
--
-- Literals: small (bytes). Parts: json (the column).
CASE WHEN pg_column_size({json}) <= {small} AND pg_column_compression({json}) IS NULL THEN {json}::text END
