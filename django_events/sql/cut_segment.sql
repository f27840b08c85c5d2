-- Let a segment end earlier, behind its last event. Its rows are looked through once.
--
-- Identifiers: log, segment; first and end are literals.
ALTER TABLE {log} DETACH PARTITION {segment};
ALTER TABLE {log} ATTACH PARTITION {segment} FOR VALUES FROM ({first}) TO ({end})
