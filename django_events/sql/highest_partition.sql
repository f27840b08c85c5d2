-- The highest partition that has events in a log whose topic lost its row.
--
-- Identifiers: log.
-- Relies on: (partition, id) of the log, where the topic had several partitions.
SELECT max(partition) FROM {log}
