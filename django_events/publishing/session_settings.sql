-- name: tell
-- Tell triggers what holds for the events that they publish, until the transaction ends or they are told otherwise.
--
-- Parts: context (JSON, or nothing), suppressed (topics and models, separated by commas): literals, or parameters.
SELECT
    set_config('django_events.context', {context}, true),
    set_config('django_events.suppressed', {suppressed}, true)


-- name: is_heard
-- Whether the site has a function in this database that reads what is told: one of `capture()`, or one that publishes.
--
-- The text of a function is in the catalogue, and of one with BEGIN ATOMIC what it calls. It reads the catalogue of all
-- functions, which takes a few milliseconds.
-- Relies on: nothing but the catalogue.
SELECT EXISTS (
    SELECT
    FROM pg_catalog.pg_proc AS p
    WHERE p.proname NOT LIKE 'django\_events\_%%'
        AND (
            p.prosrc ~ 'django_events(\.context|_publish|_schedule)'
            OR EXISTS (
                SELECT
                FROM pg_catalog.pg_depend AS d
                JOIN pg_catalog.pg_proc AS called ON called.oid = d.refobjid
                WHERE d.classid = 'pg_catalog.pg_proc'::regclass
                    AND d.objid = p.oid
                    AND d.refclassid = 'pg_catalog.pg_proc'::regclass
                    AND called.proname IN ('django_events_publish', 'django_events_schedule')
            )
        )
)
