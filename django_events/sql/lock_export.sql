-- Be the only export to a folder until this transaction ends, or find that another one is at it.
--
-- Parameters: path.
SELECT pg_try_advisory_xact_lock(hashtextextended('django_events export ' || %(path)s, 0))
