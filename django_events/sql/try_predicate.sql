-- Let PostgreSQL read a jsonpath predicate, and try it on a value of each kind.
--
-- Parameters: where.
SELECT value @@ %(where)s::jsonpath
FROM (
    VALUES
        ('null'::jsonb), ('true'), ('1'), ('"text"'), ('[]'), ('[1]'), (jsonb_build_object()), (jsonb_build_object('a', 1))
) AS sample (value)
