-- name: has_log
-- Whether a log is there.
--
-- Parameters: table.
-- Relies on: the catalog's own indexes.
SELECT to_regclass(%(table)s) IS NOT NULL


-- name: note_on_log
-- Note in the comment of a log that it is to be dropped: its topic is forgotten.
--
-- Literals: note, which no name of a topic can be. Identifiers: log.
COMMENT ON TABLE {log} IS {note}


-- name: forgotten
-- The topics that are forgotten, whose logs are still there.
--
-- Answers with the ids that they had.
-- Relies on: the catalog's own indexes, the primary key of django_events_topic.
SELECT log.topic_id
FROM (
    SELECT (regexp_match(c.relname, '_(\d+)$'))[1]::int AS topic_id, obj_description(c.oid, 'pg_class') AS note
    FROM pg_inherits AS link
    JOIN pg_class AS c ON c.oid = link.inhrelid
    WHERE link.inhparent = to_regclass('django_events_event')
) AS log
WHERE log.note LIKE 'dropped: %%' AND NOT EXISTS (SELECT FROM django_events_topic AS t WHERE t.id = log.topic_id)
ORDER BY log.topic_id


-- name: drop_table
-- Drop the log of a topic, or one segment of it.
--
-- All readers and writers of what it is attached to are locked out meanwhile, so ask for the lock for a moment only.
-- Identifiers: table.
DROP TABLE IF EXISTS {table}


-- name: drop_waiting
-- Delete some rows of what waits in a topic; answers with how many.
--
-- Parameters: topic_id, most. Identifiers: table.
-- Relies on: the primary key of the buffer (topic_id, id); the other tables are read whole.
WITH gone AS (
    DELETE FROM {table} AS w
    WHERE w.ctid = ANY(
        ARRAY(SELECT o.ctid FROM {table} AS o WHERE o.topic_id = %(topic_id)s LIMIT %(most)s)
    )
    RETURNING w.topic_id
)
SELECT count(*) FROM gone


-- name: stranded
-- The topics that events in the buffer are of, and that have neither a row nor a log: those events can't go anywhere.
--
-- Answers with the ids that the topics had. Parts: owners.
-- Relies on: the primary key of the buffer (topic_id, id), the primary key of django_events_topic.
WITH RECURSIVE {owners}
SELECT owner.id
FROM owner
WHERE owner.id IS NOT NULL
    AND NOT EXISTS (SELECT FROM django_events_topic AS t WHERE t.id = owner.id)
    AND to_regclass(format('django_events_event_%%s', owner.id)) IS NULL
