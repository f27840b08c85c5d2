-- Part of a SELECT: times as an array; infinity for none.
--
-- Identifiers: name.
array_agg(coalesce({name}, 'infinity'::timestamptz))
