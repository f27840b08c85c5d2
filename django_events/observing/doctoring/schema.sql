-- name: has_tables
-- Whether this session finds the tables of ours, whatever its role may do with them.
--
-- Relies on: the catalog's own indexes.
SELECT to_regclass('django_events_topic') IS NOT NULL


-- name: wrong_functions
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


-- name: missing_rights
-- What the role of this session may not do, by what for. A table that is not there is left out.
--
-- Publishers and workers have rights on columns. Segments are made by functions that have the rights of the log's owner.
-- Parameters: segment_functions (with their arguments).
-- Relies on: the catalog's own indexes.
SELECT need.purpose, need.name, need.privilege
FROM (
    VALUES
        ('publish', 'django_events_topic', 'SELECT', NULL),
        ('publish', 'django_events_bufferedevent', 'INSERT', 'value'),
        ('transfer', 'django_events_bufferedevent', 'SELECT', NULL),
        ('transfer', 'django_events_bufferedevent', 'DELETE', NULL),
        ('transfer', 'django_events_scheduledevent', 'DELETE', NULL),
        ('transfer', 'django_events_clock', 'UPDATE', NULL),
        ('transfer', 'django_events_topichead', 'UPDATE', NULL),
        ('transfer', 'django_events_event', 'SELECT', NULL),
        ('transfer', 'django_events_event', 'INSERT', NULL),
        ('transfer', 'django_events_delivery', 'INSERT', NULL),
        ('read', 'django_events_event', 'SELECT', NULL),
        ('handle', 'django_events_event', 'SELECT', NULL),
        ('handle', 'django_events_consumer', 'UPDATE', 'live'),
        ('handle', 'django_events_position', 'UPDATE', NULL),
        ('handle', 'django_events_delivery', 'UPDATE', NULL),
        ('handle', 'django_events_delivery', 'DELETE', NULL),
        ('handle', 'django_events_deadletter', 'INSERT', NULL)
) AS need (purpose, name, privilege, part)
WHERE CASE
    WHEN need.part IS NULL THEN NOT has_table_privilege(to_regclass(need.name), need.privilege)
    ELSE NOT has_column_privilege(to_regclass(need.name), need.part, need.privilege)
END
UNION ALL
SELECT 'make segments', f.signature, 'EXECUTE'
FROM unnest(%(segment_functions)s::text[]) AS f (signature)
WHERE NOT has_function_privilege(to_regprocedure(f.signature), 'EXECUTE')
