-- Part of a SELECT: in the place of meets.sql, where somebody's predicate fails on the event.
--
-- Relies on: nothing.
NULL::boolean
