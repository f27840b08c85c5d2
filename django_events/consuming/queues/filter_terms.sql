-- name: canonical
-- A jsonpath predicate as PostgreSQL writes it.
--
-- Parameters: predicate.
SELECT %(predicate)s::jsonpath::text
