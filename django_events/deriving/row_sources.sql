-- name: publish_rows
-- Publish the rows of these primary keys, each locked FOR SHARE until the transaction ends: what changes it waits.
--
-- A row is read as it is once it is locked, also where another transaction changed it since the statement began. One that has
-- another primary key by then is left out: that transaction published the old key's end, and the new one. At READ COMMITTED.
-- Parameters: keys (a JSON list of lists of texts), topic_id, type, metadata. Identifiers: table. Parts: wanted (the key's
-- columns), same (row `r` has the key of `w`), locking, key, checked and end, shown, condition (as in capture_rows).
-- Answers with the indexes, from 1 on, of those that are there and were not locked.
-- Relies on: the primary key of the table.
WITH wanted AS MATERIALIZED (
    SELECT {wanted}, k.index FROM jsonb_array_elements(%(keys)s::jsonb) WITH ORDINALITY AS k (key, index)
),
there AS MATERIALIZED (
    SELECT w.index FROM wanted AS w JOIN {table} AS r ON {same}
),
locked AS MATERIALIZED (
    SELECT r.*, w.index AS django_events_index
    FROM wanted AS w
    JOIN {table} AS r ON {same}
    ORDER BY w.index
    {locking}
),
published AS (
    INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
    SELECT
        %(topic_id)s::int, %(type)s::varchar, {key}, {checked}to_jsonb(django_events_shown){end},
        %(metadata)s::jsonb
    FROM locked AS r
    CROSS JOIN LATERAL (SELECT {shown}) AS django_events_shown
    WHERE {condition}
)
SELECT there.index
FROM there
WHERE (SELECT count(*) FROM locked) < (SELECT count(*) FROM wanted)
    AND there.index NOT IN (SELECT locked.django_events_index FROM locked)
ORDER BY there.index


-- name: part_of_key
-- Part of `publish_rows`: a column of the primary key, from its text.
--
-- Literals: index. Identifiers: name. Parts: type (of the column).
-- Relies on: nothing, it is a value.
(k.key ->> {index})::{type} AS {name}


-- name: same_part
-- Part of `publish_rows`: a column of a row has the value that is wanted.
--
-- Identifiers: row and wanted (qualified columns).
-- Relies on: the primary key of the table.
{row} = {wanted}


-- name: not_waiting
-- Part of `publish_rows`: rows that another transaction has locked are left out. A transaction that has rows locked, and
-- waited for others, could be in a deadlock with one of the site, of which the server ends either.
--
-- Relies on: nothing, it is a clause.
FOR SHARE OF r SKIP LOCKED


-- name: waiting
-- Part of `publish_rows`: a row that another transaction has locked is waited for; for one row at a time.
--
-- Relies on: nothing, it is a clause.
FOR SHARE OF r
