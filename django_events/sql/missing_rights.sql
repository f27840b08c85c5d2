-- What the role of this session may not do, by what for. A table that is not there is left out.
--
-- Publishers and workers have rights on columns. Segments are attached by an owner of the log only.
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
SELECT 'make segments', log.relname::text, 'ownership'
FROM pg_inherits AS link
JOIN pg_class AS log ON log.oid = link.inhrelid
WHERE link.inhparent = to_regclass('django_events_event') AND NOT pg_has_role(log.relowner, 'USAGE')
UNION ALL
SELECT 'make segments', s.nspname::text, 'CREATE'
FROM pg_class AS t
JOIN pg_namespace AS s ON s.oid = t.relnamespace
WHERE t.oid = to_regclass('django_events_event') AND NOT has_schema_privilege(s.oid, 'CREATE')
