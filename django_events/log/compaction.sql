-- name: newest
-- Part of a FROM: of each key, the newest event of a topic's log from an id on, up to, not including, another.
--
-- Only what is below `until` counts: so up to any id from there on, the newest event of each key is in the log.
-- Literals: topic_id, first, until. Identifiers: log.
-- Relies on: nothing: all of it is read, and put together in memory.
(
    SELECT n.key, max(n.id) AS id
    FROM {log} AS n
    WHERE n.topic_id = {topic_id} AND n.id >= {first} AND n.id < {until} AND n.key IS NOT NULL
    GROUP BY n.key
) AS newest


-- name: stays
-- Part of a condition on an event `e`: compaction keeps it.
--
-- What has no key stays, and the last event of each partition in the segments that are rewritten, so that numbers go on.
-- A tombstone that is old enough goes when nothing is left that it deletes. An erased event is one too.
-- Literals: topic_id, first, tombstones_kept (in seconds), lasts (the last ids of partitions). Identifiers: log.
-- Relies on: (key, id) of the log.
(
    e.key IS NULL
    OR e.id = ANY({lasts}::bigint[])
    OR (
        e.id = newest.id
        AND NOT (
            e.body IS NULL
            AND coalesce(e.value = 'null'::jsonb, true)
            AND e.logged_at < statement_timestamp() - make_interval(secs => {tombstones_kept})
            AND NOT EXISTS (
                SELECT FROM {log} AS older
                WHERE older.key = e.key AND older.id < e.id AND (older.id < {first} OR older.id = ANY({lasts}::bigint[]))
            )
        )
    )
)


-- name: counted
-- How many events each segment of a topic's log has up to an id, and how many of them stay, about.
--
-- Literals: topic_id, until. Identifiers: log. Parts: newest, stays.
-- Relies on: all of it is read.
SELECT
    (SELECT c.relname FROM pg_class AS c WHERE c.oid = counted.segment),
    counted.events,
    counted.kept
FROM (
    SELECT e.tableoid AS segment, count(*) AS events, count(*) FILTER (WHERE {stays}) AS kept
    FROM {log} AS e
    LEFT JOIN {newest} ON newest.key = e.key
    WHERE e.topic_id = {topic_id} AND e.id < {until}
    GROUP BY e.tableoid
) AS counted


-- name: unseen
-- The first event between two ids that a snapshot may not see which is open now; with who has the oldest one.
--
-- A vacuum reads no events, and a session of another database none of these; one without a database is a standby. A role
-- that may not see what others do sees their snapshots, and nothing of what they are.
-- Literals: topic_id, after, until. Identifiers: log.
-- Relies on: the events between the ids are read through.
SELECT min(e.id), min(oldest.pid)
FROM {log} AS e
CROSS JOIN (
    SELECT a.pid, age(a.backend_xmin) AS age
    FROM pg_stat_activity AS a
    WHERE a.backend_xmin IS NOT NULL
        AND a.pid <> pg_backend_pid()
        AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
        AND coalesce(a.datname = current_database(), true)
    ORDER BY age(a.backend_xmin) DESC
    LIMIT 1
) AS oldest
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id < {until} AND age(e.xmin) BETWEEN 0 AND oldest.age


-- name: lasts
-- The last event of each partition between two ids.
--
-- Literals: partitions, first, ends. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT last.id
FROM generate_series(0, {partitions} - 1) AS part (partition)
CROSS JOIN LATERAL (
    SELECT e.id
    FROM {log} AS e
    WHERE e.partition = part.partition AND e.id >= {first} AND e.id < {ends}
    ORDER BY e.id DESC
    LIMIT 1
) AS last


-- name: alone
-- Let no other process rewrite segments of a topic until the transaction ends; wait for one that does now.
--
-- It comes before all other locks, so what waits for it keeps no swap waiting.
-- Parameters: topic_id.
-- Relies on: nothing but the lock table.
SELECT pg_advisory_xact_lock(hashtextextended('django_events compaction ' || %(topic_id)s::integer, 0))


-- name: rewrite
-- Make an empty table that is to take the place of some segments, which nothing changes from now on. Readers go on.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first, ends (the ids from first up to, not including, ends). Answers with the table's name; with
-- null if the topic is not compacted, or these segments are not there any more.
-- Relies on: the catalog's own indexes.
SELECT django_events_rewrite_segments(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)


-- name: read_kept
-- The events of some segments that stay, as they are stored.
--
-- Literals: topic_id, first, ends. Identifiers: log. Parts: newest, stays.
-- Relies on: the segments are read through.
COPY (
    SELECT e.*
    FROM {log} AS e
    LEFT JOIN {newest} ON newest.key = e.key
    WHERE e.topic_id = {topic_id} AND e.id >= {first} AND e.id < {ends} AND {stays}
    ORDER BY e.id
) TO STDOUT


-- name: write_kept
-- Write some events into a table that this transaction made. They are frozen: a session whose snapshot is older than they are
-- would miss them otherwise, when the table has taken the place of the segments.
--
-- Identifiers: table.
COPY {table} FROM STDIN (FREEZE)


-- name: analyze
-- Have the server look at what is in the new table, before it is read: without statistics a key is found by reading all.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first (the first id that it is for).
-- Relies on: a sample is read.
SELECT django_events_analyze_rewritten(%(topic_id)s::integer, %(first)s::bigint)


-- name: swap
-- Put the new table in the place of the segments.
--
-- All readers and writers of the log are locked out meanwhile, so ask for the lock for a moment only. The function has
-- the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first, ends (the ids from first up to, not including, ends). Answers with null if the topic is
-- not compacted any more, or these segments are not there.
-- Relies on: the catalog's own indexes.
SELECT django_events_swap_segments(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)


-- name: note
-- Write down up to which id events may be missing, and how many there are up to it.
--
-- Parameters: topic_id, until, kept (-1 while segments are still to be rewritten).
-- Relies on: the primary key of django_events_topichead.
UPDATE django_events_topichead
SET compacted_until = greatest(compacted_until, %(until)s), kept_events = %(kept)s
WHERE topic_id = %(topic_id)s
RETURNING topic_id


-- name: sizes
-- How large the tables of segments are, their indexes included.
--
-- Parameters: tables (names).
-- Relies on: the catalog's own indexes.
SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::bigint FROM unnest(%(tables)s::text[]) AS name
