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


-- name: match_predicate
-- Part of a condition on an event `e`: a jsonpath predicate holds for its value, or for its metadata.
--
-- What has no such place, or a body instead of a value, doesn't match.
-- Identifiers: column. Literals: predicate.
coalesce(e.{column} @@ {predicate}::jsonpath, false)


-- name: match_with_variables
-- Part of a condition, as `match_predicate`, for a predicate that names variables.
--
-- The function is what the operator `@@` calls, with them.
-- Identifiers: column. Literals: predicate, vars.
coalesce(jsonb_path_match(e.{column}, {predicate}::jsonpath, {vars}::jsonb, true), false)
