-- Which of these functions are not there, or not for this role.
--
-- Parameters: signatures.
-- Relies on: the catalog's own indexes.
SELECT f.signature, to_regprocedure(f.signature) IS NOT NULL AS there
FROM unnest(%(signatures)s::text[]) AS f (signature)
WHERE to_regprocedure(f.signature) IS NULL OR NOT has_function_privilege(to_regprocedure(f.signature), 'EXECUTE')
