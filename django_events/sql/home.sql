-- Where the tables of events are: the schema, its database, who owns them, and the functions with their arguments.
--
-- Relies on: the catalog's own indexes.
SELECT
    n.nspname, current_database(), pg_get_userbyid(c.relowner),
    ARRAY(
        SELECT format('%%I.%%I(%%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes))
        FROM pg_proc AS p
        WHERE p.pronamespace = n.oid AND p.proname IN (
            'django_events_open', 'django_events_publish', 'django_events_schedule', 'django_events_is_new'
        )
        ORDER BY p.proname
    )
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('django_events_topic')
