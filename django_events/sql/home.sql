-- Where the tables of events are: the schema, its database, who owns them, the owner's functions that publish and that
-- change segments, with their arguments, and the schemas of the search_path.
--
-- Relies on: the catalog's own indexes.
SELECT
    n.nspname, current_database(), pg_get_userbyid(c.relowner),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours !~ '_segment\('),
    ARRAY(SELECT ours FROM unnest(f.signatures) AS ours WHERE ours ~ '_segment\('),
    ARRAY(SELECT name FROM unnest(current_schemas(false)) AS name WHERE NOT starts_with(name, 'pg_'))::text[]
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT format('%%I.%%I(%%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes))
        FROM pg_proc AS p
        WHERE p.pronamespace = n.oid AND p.proowner = c.relowner AND p.proname IN (
            'django_events_open', 'django_events_checked', 'django_events_publish', 'django_events_schedule',
            'django_events_is_new',
            'django_events_make_segment', 'django_events_cut_segment', 'django_events_drop_segment'
        )
        ORDER BY p.proname
    ) AS signatures
) AS f
WHERE c.oid = to_regclass('django_events_topic')
