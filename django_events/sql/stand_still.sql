-- Have nobody claim deliveries of these queue consumers until the transaction ends, and wait for those who do now.
--
-- Who puts older deliveries in, or takes some away, needs it: a claim by key has to see all that are older.
-- Parameters: consumer_ids.
-- Relies on: nothing but the lock table. enter.sql takes the other side of the lock.
SELECT pg_advisory_xact_lock(561, id) FROM unnest(%(consumer_ids)s::int[]) AS id ORDER BY id
