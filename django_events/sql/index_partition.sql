-- The index by which a partition of a topic is read, and its last number is found.
--
-- Identifiers: log, index.
CREATE INDEX IF NOT EXISTS {index} ON {log} (partition, id)
