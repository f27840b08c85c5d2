-- name: lock_to_sleep
-- Take the lock that tells publishers to notify, unless another session has it. Answers with nothing then, otherwise with
-- how many transactions the server lets be prepared.
--
-- Parameters: lock.
SELECT current_setting('max_prepared_transactions') WHERE pg_try_advisory_lock(%(lock)s)


-- name: share_lock
-- Take the same lock as publishers do, who share it: it fails while a transfer sleeps.
--
-- Parameters: lock.
SELECT pg_try_advisory_lock_shared(%(lock)s)


-- name: unshare_lock
-- Give that up again.
--
-- Parameters: lock.
SELECT pg_advisory_unlock_shared(%(lock)s)


-- name: unlock
-- Give the lock up that tells publishers to notify.
--
-- Parameters: lock.
SELECT pg_advisory_unlock(%(lock)s)
