-- Make the table of one topic's log, not attached yet. Its comment says which topic it belongs to.
--
-- Identifiers: log, name (a literal).
CREATE TABLE {log} (LIKE django_events_event) PARTITION BY RANGE (id);
COMMENT ON TABLE {log} IS {name}
