-- The index by which the events of one key are read.
--
-- Identifiers: log, index.
CREATE INDEX IF NOT EXISTS {index} ON {log} (key, id)
