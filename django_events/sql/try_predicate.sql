-- Let PostgreSQL read a jsonpath predicate, and try it on a value of each kind.
--
-- Parameters: where.
SELECT value @@ %(where)s::jsonpath
FROM unnest(ARRAY['null', 'true', '1', '"text"', '[]', '[1]', '{}', '{"a": 1}']::jsonb[]) AS sample (value)
