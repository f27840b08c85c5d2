-- Where the tables of events are: the schema, its database, who owns them, the owner's functions that publish and that
-- change segments, with their arguments, and the schemas of the search_path.
--
-- Relies on: the catalog's own indexes.
SELECT
    n.nspname, current_database(), pg_get_userbyid(c.relowner), ours.publishing, ours.segments,
    ARRAY(SELECT name FROM unnest(current_schemas(false)) AS name WHERE NOT starts_with(name, 'pg_'))::text[]
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT
        coalesce(array_agg(f.signature ORDER BY f.name) FILTER (WHERE f.name !~ '_segment$'), '{}') AS publishing,
        coalesce(array_agg(f.signature ORDER BY f.name) FILTER (WHERE f.name ~ '_segment$'), '{}') AS segments
    FROM (
        SELECT p.proname AS name, format('%%I.%%I(%%s)', n.nspname, p.proname, oidvectortypes(p.proargtypes)) AS signature
        FROM pg_proc AS p
        WHERE p.pronamespace = n.oid AND p.proowner = c.relowner AND p.proname IN (
            'django_events_open', 'django_events_publish', 'django_events_schedule', 'django_events_is_new',
            'django_events_make_segment', 'django_events_cut_segment', 'django_events_drop_segment'
        )
    ) AS f
) AS ours
WHERE c.oid = to_regclass('django_events_topic')
