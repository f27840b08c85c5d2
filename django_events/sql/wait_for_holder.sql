-- Wait until the holder of a lost lease is gone, with its locks.
--
-- Shared: several may take over, or rewind, at the same time, and none of them is the holder.
-- Parameters: token (the lost one).
SELECT pg_advisory_xact_lock_shared(%(token)s)
