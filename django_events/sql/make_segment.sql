-- Make a segment of a topic's log and attach it. Readers and writers of the log go on meanwhile.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first, ends (the ids from first up to, not including, ends).
-- Relies on: the catalog's own indexes.
SELECT django_events_make_segment(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)
