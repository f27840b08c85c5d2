-- Part of a SELECT: in the place of meets.sql, where somebody's predicate fails on the event: null for all with a predicate.
--
-- Relies on: nothing but the two rows.
(
    (
        c.types IS NULL
        OR c.types @> to_jsonb(e.type)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.type_expressions) AS x WHERE e.type ~ x)
    )
    AND (
        c.keys IS NULL
        OR c.keys @> to_jsonb(e.key)
        OR EXISTS (SELECT FROM jsonb_array_elements_text(c.key_expressions) AS x WHERE e.key ~ x)
    )
    AND (c."where" IS NULL OR NULL)
)
