-- name: one_at_a_time
-- Until this transaction ends, no other one folds events into the table of this projection.
--
-- Parameters: projection (its name).
-- Relies on: nothing but the lock table.
SELECT pg_advisory_xact_lock(hashtextextended('django_events projection ' || %(projection)s, 0)) IS NULL
