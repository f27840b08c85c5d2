-- name: logs
-- The logs that are attached to the root, by the id of their topic, with the name in their comment.
--
-- Relies on: the catalog's own indexes.
SELECT
    (regexp_match(log.relname, '_(\d+)$'))[1]::int AS topic_id,
    obj_description(log.oid, 'pg_class') AS name
FROM pg_inherits AS link
JOIN pg_class AS log ON log.oid = link.inhrelid
WHERE link.inhparent = to_regclass('django_events_event')


-- name: lock_topics
-- Let only one process at a time make or change topics, until its transaction ends.
--
-- A lock of the table, as the first statement: unlike a function that takes a lock, it takes no
-- snapshot, so a session that waited sees what was made meanwhile, at REPEATABLE READ too. Readers and
-- publishers don't notice it.
LOCK TABLE django_events_topic IN SHARE ROW EXCLUSIVE MODE


-- name: highest_partition
-- The highest partition that has events in a log whose topic lost its row.
--
-- Identifiers: log.
-- Relies on: (partition, id) of the log, where the topic had several partitions.
SELECT max(partition) FROM {log}


-- name: next_topic_id
-- The id of a new topic: never one that a row or a log has already, also after a flush that
-- started the sequence anew.
--
-- Parameters: logs (the ids of the logs that are there).
-- Relies on: the primary key of django_events_topic.
SELECT setval(
    pg_get_serial_sequence('django_events_topic', 'id'),
    greatest(
        nextval(pg_get_serial_sequence('django_events_topic', 'id')),
        (SELECT max(id) + 1 FROM django_events_topic),
        (SELECT max(id) + 1 FROM unnest(%(logs)s::bigint[]) AS log (id))
    )
)


-- name: beginnings_of_partitions
-- The first number of each partition of a topic that has events.
--
-- Only for topics of several partitions; see `ends_of_partitions`.
-- Literals: partitions. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT part.partition, first.number AS begins_at
FROM generate_series(0, {partitions} - 1) AS part (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = part.partition
    ORDER BY e.id
    LIMIT 1
) AS first


-- name: topic_used
-- Whether a topic has, or ever had, events in its log. Those in the buffer have no partition yet.
--
-- Parameters: topic_id.
-- Relies on: the primary keys of the heads and the log.
SELECT
    EXISTS (SELECT FROM django_events_event WHERE topic_id = %(topic_id)s)
    OR EXISTS (SELECT FROM django_events_topichead WHERE topic_id = %(topic_id)s AND id_floor > 0)
