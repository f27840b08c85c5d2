-- name: verify_logs
-- Topics without a log or without a head, and logs without a topic, but for those that are to be dropped.
--
-- Answers with the fault, and the topic's id and name.
-- Relies on: the catalog's own indexes, the primary keys of django_events_topic and django_events_topichead.
WITH log AS (
    SELECT
        (regexp_match(log.relname, '_(\d+)$'))[1]::int AS topic_id,
        obj_description(log.oid, 'pg_class') AS name
    FROM pg_inherits AS link
    JOIN pg_class AS log ON log.oid = link.inhrelid
    WHERE link.inhparent = to_regclass('django_events_event')
)
SELECT 'log', t.id, t.name FROM django_events_topic AS t WHERE t.id NOT IN (SELECT log.topic_id FROM log)
UNION ALL
SELECT 'head', t.id, t.name
FROM django_events_topic AS t
WHERE NOT EXISTS (SELECT FROM django_events_topichead AS h WHERE h.topic_id = t.id)
UNION ALL
SELECT 'topic', log.topic_id, log.name
FROM log
WHERE log.topic_id NOT IN (SELECT t.id FROM django_events_topic AS t)
    AND coalesce(log.name, '') NOT LIKE 'dropped: %%'
ORDER BY 2


-- name: left_in_buffer
-- The topics that events in the buffer are of, and that are gone: no transfer moves those.
--
-- Answers with the ids that the topics had, and how many events there are. Parts: owners.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH RECURSIVE {owners}
SELECT owner.id, (SELECT count(*) FROM django_events_bufferedevent AS b WHERE b.topic_id = owner.id)
FROM owner
WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM django_events_topic AS t WHERE t.id = owner.id)
ORDER BY owner.id


-- name: left_of_consumers
-- How many rows of a table are left of consumers that are gone, by the ids that these had.
--
-- Identifiers: table.
-- Relies on: an index of the table that begins with the consumer.
WITH RECURSIVE owner AS (
    (SELECT d.consumer_id AS id FROM {table} AS d ORDER BY d.consumer_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.consumer_id FROM {table} AS d WHERE d.consumer_id > owner.id ORDER BY d.consumer_id LIMIT 1)
    FROM owner
    WHERE owner.id IS NOT NULL
)
SELECT owner.id, (SELECT count(*) FROM {table} AS d WHERE d.consumer_id = owner.id)
FROM owner
WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM django_events_consumer AS c WHERE c.id = owner.id)
ORDER BY owner.id


-- name: verify_buffer
-- What of a topic waits in the buffer: the last ticket, the last ticket of the sequence if this role may read it, and how
-- many have a partition that the topic doesn't have, no more than are looked at.
--
-- The sequence is read behind the rows, and only rises. Parameters: topic_id, partitions, most (rows to look at).
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT
    last.id,
    CASE
        WHEN has_sequence_privilege(pg_get_serial_sequence('django_events_bufferedevent', 'id'), 'SELECT, USAGE')
            THEN coalesce(pg_sequence_last_value(pg_get_serial_sequence('django_events_bufferedevent', 'id')::regclass), 0)
    END,
    (
        SELECT count(*)
        FROM (
            SELECT b.partition
            FROM django_events_bufferedevent AS b
            WHERE b.topic_id = %(topic_id)s
            ORDER BY b.id
            LIMIT %(most)s
        ) AS oldest
        WHERE oldest.partition NOT BETWEEN 0 AND %(partitions)s - 1
    )
FROM (
    SELECT b.id
    FROM django_events_bufferedevent AS b
    WHERE b.topic_id = %(topic_id)s
    ORDER BY b.id DESC
    LIMIT 1
) AS last


-- name: unattached_segments
-- Tables that are named like segments of a log and are not attached to it.
--
-- The names are those behind the log's and an underscore; ` is the character after _. LIKE would read thousands more.
-- Parameters: log (a table's name).
-- Relies on: pg_class_relname_nsp_index, and the catalog's other indexes.
SELECT segment.relname, (regexp_match(segment.relname, '_(\d+)$'))[1]::bigint AS first
FROM pg_class AS segment
WHERE segment.relname COLLATE "C" >= (%(log)s::text || '_')::name
    AND segment.relname COLLATE "C" < (%(log)s::text || '`')::name
    AND segment.relname ~ '_\d+$'
    AND segment.relkind = 'r'
    AND segment.relnamespace = (SELECT log.relnamespace FROM pg_class AS log WHERE log.oid = to_regclass(%(log)s))
    AND NOT EXISTS (
        SELECT FROM pg_inherits AS link WHERE link.inhrelid = segment.oid AND NOT link.inhdetachpending
    )
ORDER BY first
