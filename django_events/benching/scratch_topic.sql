-- name: hold_topic
-- Take a name until this transaction ends, or find that another session has it.
--
-- A lock of the transaction, because a pooler hands sessions around. It holds no snapshot while it waits.
-- Parameters: name.
SELECT pg_try_advisory_xact_lock(hashtextextended('django_events ' || %(name)s, 0))
