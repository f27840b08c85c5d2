-- name: match_pattern
-- Part of a condition on an event `e`: a column matches one of these regular expressions.
--
-- Identifiers: column. Literals: expressions.
e.{column} ~ ANY({expressions}::text[])


-- name: match_text
-- Part of a condition on an event `e`: a column is one of these texts.
--
-- Identifiers: column. Literals: texts.
e.{column} = ANY({texts}::text[])


-- name: match_value
-- Part of a condition on an event `e`: a jsonpath predicate holds for its value.
--
-- What has no such place, or a body instead of a value, doesn't match.
-- Literals: where.
coalesce(e.value @@ {where}::jsonpath, false)
