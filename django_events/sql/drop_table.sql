-- Drop the log of a topic, or one segment of it.
--
-- Everybody who reads or writes what it is attached to is locked out meanwhile, so ask for the lock for a moment only.
-- Identifiers: table.
DROP TABLE IF EXISTS {table}
