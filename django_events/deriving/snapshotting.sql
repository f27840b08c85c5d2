-- name: unfinished
-- The snapshots of a table that were begun and neither finished nor given up, the newest first, and whether a process is at it.
--
-- Parameters: topic, table.
-- Relies on: interventions being few.
SELECT i.id, i.details, coalesce((i.details ->> 'leased_until')::timestamptz > clock_timestamp(), false)
FROM django_events_intervention AS i
WHERE i.action = 'snapshot' AND i.topic = %(topic)s AND i.details ->> 'table' = %(table)s AND i.details ->> 'state' = 'running'
ORDER BY i.id DESC


-- name: take
-- Take a snapshot over, or begin it, under a new token: unless its lease is good, a process that had it before does nothing
-- more.
--
-- Parameters: snapshot, token (a text), holder, lease (an interval).
-- Relies on: the primary key of django_events_intervention.
UPDATE django_events_intervention AS i
SET details = i.details || jsonb_build_object(
    'token', %(token)s::text, 'holder', %(holder)s::text, 'leased_until', clock_timestamp() + %(lease)s::interval
)
WHERE i.id = %(snapshot)s
    AND i.details ->> 'state' = 'running'
    AND coalesce((i.details ->> 'leased_until')::timestamptz <= clock_timestamp(), true)
RETURNING i.details


-- name: note
-- Write down how far a snapshot is, in the transaction of what it published, if the token is still that of its process.
--
-- The commit need not wait for the disk before the last one, which brings all others there: a crash of the server undoes
-- a chunk and this together.
-- Parameters: snapshot, token (a text), progress (an object of what changed), lease (an interval), async_commit.
-- Relies on: the primary key of django_events_intervention.
UPDATE django_events_intervention AS i
SET details = i.details || %(progress)s::jsonb || jsonb_build_object(
    'leased_until', clock_timestamp() + %(lease)s::interval
)
WHERE i.id = %(snapshot)s AND i.details ->> 'token' = %(token)s AND i.details ->> 'state' = 'running'
RETURNING i.id, CASE WHEN %(async_commit)s THEN set_config('synchronous_commit', 'off', true) END


-- name: lock_table
-- One process at a time begins a snapshot of a table: until the transaction ends.
--
-- Parameters: table.
-- Relies on: nothing but the lock table.
SELECT pg_advisory_xact_lock(hashtextextended(%(table)s, 562))


-- name: rows_about
-- How many rows a table has, as the server's statistics say: fewer than none where it has none.
--
-- Parameters: table (its name, quoted where it must be).
-- Relies on: the catalog's own indexes.
SELECT c.reltuples::bigint FROM pg_class AS c WHERE c.oid = to_regclass(%(table)s)
