-- name: let_erasures_begin
-- Wait until each erasure that has begun is visible: none with a lower number than those that are read now comes later.
--
-- The other side is `begin_erasure`, whose transaction has one INSERT in it. Holds until this transaction ends.
SELECT
    set_config('lock_timeout', '30s', true),
    pg_advisory_xact_lock(hashtextextended('django_events erasures', 0))


-- name: erasures
-- The erasures of a topic behind one of them, in the order in which they began, and all that are not done.
--
-- `closed_by` names a later one that stands in for it. Those of a topic of that name that was removed are left out by its incarnation. Parameters: topic (its name),
-- incarnation, after (the number of the last one that is known).
-- Relies on: a site has few interventions.
SELECT i.id, i.at, i.details
FROM django_events_intervention AS i
WHERE i.action = 'erase' AND i.topic = %(topic)s AND i.details ->> 'incarnation' = %(incarnation)s
    AND (i.id > %(after)s OR (i.details -> 'until' IS NULL AND i.details -> 'closed_by' IS NULL))
ORDER BY i.id


-- name: last_before_reading
-- The number of the last erasure of a topic by now that, with all before it, what is read from now on can't have.
--
-- With its time. On a replica always none: there a record may be seen before one with a lower number. Parameters: topic (its name), incarnation.
-- Relies on: a site has few interventions.
SELECT i.id, i.at
FROM (
    SELECT
        i.id,
        i.at,
        bool_and(coalesce(i.details -> 'until', i.details -> 'passed', i.details -> 'closed_by') IS NOT NULL)
            OVER (ORDER BY i.id) AS is_done
    FROM django_events_intervention AS i
    WHERE i.action = 'erase' AND i.topic = %(topic)s AND i.details ->> 'incarnation' = %(incarnation)s
) AS i
WHERE i.is_done AND NOT pg_is_in_recovery()
ORDER BY i.id DESC
LIMIT 1


-- name: pass_erasures
-- Note of erasures that are not done that a copy goes past them: one that is at work gets another number when it is done.
--
-- What of them is done by now is left as it is. The other side is `_say_blank` of operating/erasing. Parameters: numbers.
-- Relies on: the primary key of django_events_intervention.
UPDATE django_events_intervention AS i
SET details = i.details || jsonb_build_object('passed', true)
WHERE i.id = ANY(%(numbers)s::bigint[]) AND i.details -> 'until' IS NULL
RETURNING i.id


-- name: erasure_is_done
-- When an erasure began (null if it isn't known), and whether this database has done it in its log, with all before it.
--
-- A replica that is behind, or a database that was restored, has not, or has another one of that number.
-- Parameters: id, topic (its name), incarnation.
-- Relies on: a site has few interventions.
SELECT
    max(i.at) FILTER (WHERE i.id = %(id)s),
    bool_and(coalesce(i.details -> 'until', i.details -> 'passed', i.details -> 'closed_by') IS NOT NULL)
FROM django_events_intervention AS i
WHERE i.action = 'erase' AND i.topic = %(topic)s AND i.details ->> 'incarnation' = %(incarnation)s AND i.id <= %(id)s


-- name: begin_exported_erasure
-- Note that erasures are going to be applied to what was exported; answers with the number of the record.
--
-- Parameters: by, topic (its name), details.
INSERT INTO django_events_intervention (at, by, action, consumer, topic, details)
VALUES (clock_timestamp(), %(by)s, 'erase_exported', '', %(topic)s, %(details)s::jsonb)
RETURNING id


-- name: finish_exported_erasure
-- Note what came of it.
--
-- Parameters: id, details.
-- Relies on: the primary key of django_events_intervention.
UPDATE django_events_intervention AS i
SET details = i.details || %(details)s::jsonb
WHERE i.id = %(id)s
RETURNING i.id


-- name: newest_erasure
-- The number of the newest erasure of a topic, and of how many its log is blank: what `erasures` finds changes with these.
--
-- Parameters: topic (its name), incarnation.
-- Relies on: a site has few interventions.
SELECT coalesce(max(i.id), 0), count(*) FILTER (WHERE i.details -> 'until' IS NOT NULL)
FROM django_events_intervention AS i
WHERE i.action = 'erase' AND i.topic = %(topic)s AND i.details ->> 'incarnation' = %(incarnation)s
