-- Part of a condition on an event `e`: a jsonpath predicate holds for its value.
--
-- What has no such place, or a body instead of a value, doesn't match.
-- Literals: where.
coalesce(e.value @@ {where}::jsonpath, false)
