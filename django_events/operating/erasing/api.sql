-- name: begin_erasure
-- Have whoever reads the records of erasures wait until this one is there, or get its number after it has read.
--
-- The other side is `let_erasures_begin` of exporting/erasures.sql. Holds until this transaction ends.
SELECT pg_advisory_xact_lock_shared(hashtextextended('django_events erasures', 0))
