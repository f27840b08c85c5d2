-- A limit of time for what comes behind it in the same message.
--
-- Literals: milliseconds.
-- Relies on: nothing.
SELECT set_config('statement_timeout', {milliseconds}, true)
