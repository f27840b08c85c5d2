-- Drop the oldest segment of a topic's log, or an empty one.
--
-- Everybody who reads or writes the log is locked out meanwhile, so ask for the lock for a moment only. The function has
-- the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first (id of the segment). Answers with whether it was there.
-- Relies on: the catalog's own indexes.
SELECT django_events_drop_segment(%(topic_id)s::integer, %(first)s::bigint)
