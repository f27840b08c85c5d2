-- As stand_still.sql, for one queue consumer, and only if nobody claims in this moment.
--
-- Parameters: consumer_id. Answers whether it stands still.
-- Relies on: nothing but the lock table.
SELECT pg_try_advisory_xact_lock(561, %(consumer_id)s)
