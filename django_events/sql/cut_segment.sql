-- Let a segment end earlier, behind its last event. Its rows are looked through once.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first (id of the segment), ends (the id behind its last one).
-- Relies on: the catalog's own indexes.
SELECT django_events_cut_segment(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)
