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
