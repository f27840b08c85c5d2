-- Which of these functions are not there, not for this role, or not those that this version made.
--
-- Parameters: signatures, digests (arrays of one length: the MD5 of each body), called (those that this role is to call).
-- Relies on: the catalog's own indexes.
SELECT f.signature, p.oid IS NOT NULL AS there, p.oid IS NOT NULL AND may.call AS may_call
FROM unnest(%(signatures)s::text[], %(digests)s::text[]) AS f (signature, digest)
LEFT JOIN pg_proc AS p ON p.oid = to_regprocedure(f.signature)
CROSS JOIN LATERAL (
    SELECT f.signature <> ALL(%(called)s::text[]) OR has_function_privilege(p.oid, 'EXECUTE') AS call
) AS may
WHERE p.oid IS NULL OR NOT may.call OR md5(p.prosrc) <> f.digest
