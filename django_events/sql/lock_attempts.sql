-- Wait for an earlier try to publish the same attempts, whose answer was lost; keep others out until this transaction
-- ends.
--
-- Parameters: attempts.
SELECT pg_advisory_xact_lock(hashtextextended(%(attempts)s::uuid[]::text, 0))
