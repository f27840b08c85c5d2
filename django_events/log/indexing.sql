-- name: index_is_there
-- Whether an index of this name is there, whole or not.
--
-- Parameters: index (a name).
-- Relies on: the catalog's own indexes.
SELECT to_regclass(%(index)s::text) IS NOT NULL


-- name: make_index
-- The index of a log, without the parts of its segments. Segments that come later have theirs from the beginning.
--
-- Identifiers: index, log, columns.
CREATE INDEX IF NOT EXISTS {index} ON ONLY {log} ({columns})


-- name: parts
-- The segments of a log, newest first: whether each has its part of the index attached, and whether one that isn't is
-- valid; null if there is none.
--
-- Parameters: log, index, kind (names).
-- Relies on: the catalog's own indexes.
SELECT segment.relname, attached.indexrelid IS NOT NULL, own.indisvalid
FROM pg_inherits AS link
JOIN pg_class AS segment ON segment.oid = link.inhrelid
LEFT JOIN LATERAL (
    SELECT i.indexrelid
    FROM pg_index AS i
    JOIN pg_inherits AS up ON up.inhrelid = i.indexrelid
    WHERE i.indrelid = segment.oid AND up.inhparent = to_regclass(%(index)s::text)
) AS attached ON true
LEFT JOIN LATERAL (
    SELECT i.indisvalid
    FROM pg_index AS i
    WHERE attached.indexrelid IS NULL
        AND i.indrelid = segment.oid
        AND i.indexrelid = to_regclass(segment.relname || '_' || %(kind)s::text)
) AS own ON true
WHERE link.inhparent = to_regclass(%(log)s::text) AND NOT link.inhdetachpending
ORDER BY segment.oid DESC


-- name: build_part
-- Build the index of a segment beside what is written. Not in a transaction.
--
-- Identifiers: index, segment, columns.
CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {segment} ({columns})


-- name: build_part_at_once
-- As `build_part`, in a transaction: writers wait.
--
-- Identifiers: index, segment, columns.
CREATE INDEX IF NOT EXISTS {index} ON {segment} ({columns})


-- name: builders
-- The sessions that build an index of a segment now, or clean it.
--
-- Parameters: segment (a name).
-- Relies on: nothing but the lock table.
SELECT l.pid
FROM pg_locks AS l
WHERE l.locktype = 'relation'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation = to_regclass(%(segment)s::text)
    AND l.mode = 'ShareUpdateExclusiveLock'
    AND l.granted
    AND l.pid <> pg_backend_pid()


-- name: rebuild_part
-- Build once more what an interruption left. Not in a transaction.
--
-- Identifiers: index.
REINDEX INDEX CONCURRENTLY {index}


-- name: part_is_whole
-- Whether the index of a segment is there and valid; and whether the segment has another one attached to that of the log,
-- because compaction has put another table in its place meanwhile.
--
-- Parameters: part, index (names).
-- Relies on: the catalog's own indexes.
SELECT
    i.indisvalid,
    EXISTS (
        SELECT
        FROM pg_index AS other
        JOIN pg_inherits AS up ON up.inhrelid = other.indexrelid
        WHERE other.indrelid = i.indrelid AND other.indexrelid <> i.indexrelid
            AND up.inhparent = to_regclass(%(index)s::text)
    )
FROM pg_index AS i
WHERE i.indexrelid = to_regclass(%(part)s::text)


-- name: attach_part
-- Attach the index of a segment to that of the log, which is valid with the last one.
--
-- Identifiers: index, part.
ALTER INDEX {index} ATTACH PARTITION {part}


-- name: drop_index
-- Drop an index, with the parts that are attached to it.
--
-- Readers and writers of the log are locked out meanwhile, so ask for the lock for a moment only. Identifiers: index.
DROP INDEX IF EXISTS {index}
