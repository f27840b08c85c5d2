-- Part of a SELECT: a JSON column of events `e` as text under another name, or in its place JSON that says why it isn't.
--
-- Identifiers: column, name. Parts: text.
CASE
    WHEN e.{column} IS NOT NULL
        THEN coalesce(
            {text},
            jsonb_build_object(
                'unreadable', 'It has numbers of more than 4,300 digits, and as text it may be larger than memory.'
            )::text
        )
END AS {name}
