-- Let only one process at a time make or change topics, until its transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('django_events topics', 0))
