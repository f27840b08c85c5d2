-- name: keep_segments
-- Have no segment of a log dropped until the transaction ends, or the savepoint is rolled back.
--
-- Before the transaction has a snapshot: what is dropped after it was taken is missed by later statements, though the
-- head in the snapshot says that it is there. Publishing, transfer and new segments go on.
-- Identifiers: log.
LOCK TABLE {log} IN ACCESS SHARE MODE
