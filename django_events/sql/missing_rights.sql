-- What the role of this session may not do, by what for. A table that is not there is left out.
--
-- Segments are attached by an owner of the log only.
-- Relies on: the catalog's own indexes.
SELECT need.purpose, need.name, need.privilege
FROM (
    VALUES
        ('publish', 'django_events_topic', 'SELECT'),
        ('publish', 'django_events_bufferedevent', 'INSERT'),
        ('transfer', 'django_events_bufferedevent', 'SELECT'),
        ('transfer', 'django_events_bufferedevent', 'DELETE'),
        ('transfer', 'django_events_scheduledevent', 'DELETE'),
        ('transfer', 'django_events_topichead', 'UPDATE'),
        ('transfer', 'django_events_event', 'SELECT'),
        ('transfer', 'django_events_event', 'INSERT'),
        ('transfer', 'django_events_delivery', 'INSERT'),
        ('handle', 'django_events_event', 'SELECT'),
        ('handle', 'django_events_position', 'UPDATE'),
        ('handle', 'django_events_delivery', 'UPDATE'),
        ('handle', 'django_events_delivery', 'DELETE'),
        ('handle', 'django_events_deadletter', 'INSERT')
) AS need (purpose, name, privilege)
WHERE NOT has_table_privilege(to_regclass(need.name), need.privilege)
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
