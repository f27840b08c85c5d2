-- Drop a segment with what is in it.
--
-- Identifiers: segment.
DROP TABLE {segment}
