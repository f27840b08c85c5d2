-- Make a segment and attach it. Readers and writers of the log go on meanwhile: only the new table
-- is locked against them.
--
-- Identifiers: log, segment; first and end are literals.
CREATE TABLE {segment} (LIKE {log});
ALTER TABLE {log} ATTACH PARTITION {segment} FOR VALUES FROM ({first}) TO ({end})
