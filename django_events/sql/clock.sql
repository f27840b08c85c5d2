-- The database's clock.
--
-- Relies on: nothing.
SELECT clock_timestamp()
