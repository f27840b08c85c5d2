-- name: copy_range
-- Hand over a range of a topic's log, in order, for reading/rows.py: a row for each piece of the range.
--
-- The bounds stand there twice: as literals, so that no other segments are opened, and those of the piece.
-- Literals: topic_id, start, end, piece (ids in a row). Identifiers: log. Parts: columns, gathered, condition.
-- Relies on: the primary key of the log.
COPY (
    SELECT piece.*
    FROM generate_series({start}::bigint, {end}::bigint - 1, {piece}::bigint) AS s (first)
    CROSS JOIN LATERAL (
        SELECT {gathered}
        FROM (
            SELECT {columns}
            FROM {log} AS e
            WHERE e.topic_id = {topic_id}
                AND e.id >= {start} AND e.id < {end}
                AND e.id >= s.first AND e.id < s.first + {piece}
                AND {condition}
            ORDER BY e.id
            OFFSET 0
        ) AS event
    ) AS piece
) TO STDOUT (FORMAT binary)


-- name: copy_chosen
-- Hand over events of a topic's log that lie anywhere in it, in order, for reading/rows.py: a row for each piece of their ids.
--
-- The first and the last id are literals too, so that no segments before and behind these are opened. LIMIT has each id looked
-- for by itself: as a join, all events in between would be read for each piece.
-- Literals: topic_id, ids (in rising order), count (of these), first, last, piece (ids in a row). Identifiers: log.
-- Parts: columns, gathered, condition.
-- Relies on: the primary key of the log.
COPY (
    SELECT piece.*
    FROM generate_series(1, {count}, {piece}) AS s (first)
    CROSS JOIN LATERAL (
        SELECT {gathered}
        FROM (
            SELECT {columns}
            FROM unnest(({ids}::bigint[])[s.first : s.first + {piece} - 1]) AS chosen (chosen_id)
            CROSS JOIN LATERAL (
                SELECT one.*
                FROM {log} AS one
                WHERE one.topic_id = {topic_id}
                    AND one.id >= {first} AND one.id <= {last}
                    AND one.id = chosen.chosen_id
                LIMIT 1
            ) AS e
            WHERE {condition}
            ORDER BY e.id
            OFFSET 0
        ) AS event
    ) AS piece
) TO STDOUT (FORMAT binary)


-- name: copy_answer
-- Hand over what a statement answers with, for reading/rows.py: a row for each 200 of its rows, or fewer if they are large.
--
-- Parts: asked, gathered.
COPY (
    SELECT {gathered}
    FROM (
        SELECT
            answer.*,
            (row_number() OVER (ROWS UNBOUNDED PRECEDING) - 1) / 200 AS piece,
            sum(pg_column_size(answer)) OVER (ROWS UNBOUNDED PRECEDING) / 33554432 AS size
        FROM ({asked}) AS answer
    ) AS numbered
    GROUP BY piece, size
    ORDER BY piece, size
) TO STDOUT (FORMAT binary)


-- name: as_is
-- Part of a SELECT: a column under another name.
--
-- Identifiers: column, name.
{column} AS {name}


-- name: as_text
-- Part of a SELECT: a column as text in UTF-8, under another name.
--
-- Identifiers: column, name.
{column}::text AS {name}


-- name: as_text_if_small
-- Part of a SELECT: a JSON column as text, and null where it is not small.
--
-- Literals: small (bytes). Identifiers: json (the column).
CASE WHEN pg_column_size({json}) <= {small} AND pg_column_compression({json}) IS NULL THEN {json}::text END


-- name: without_bytes
-- Part of a SELECT: nothing in the place of bytes that can't be sent.
--
-- Identifiers: name.
NULL::bytea AS {name}


-- name: as_text_if_there
-- Part of a SELECT from events `e`: JSON as text, null where it is not made into text; and whether there is one.
--
-- Identifiers: column, name, there. Parts: text.
{text} AS {name}, e.{column} IS NOT NULL AS {there}


-- name: gather_foreign_json
-- Part of a SELECT: as `gather_json`, in UTF-8, of a server that keeps texts in another encoding.
--
-- Identifiers: name, there (of the column that says whether there is one).
string_agg(convert_to({name}, 'UTF8'), NULL),
string_agg(
    int4send(coalesce(octet_length(convert_to({name}, 'UTF8')), CASE WHEN {there} THEN -2 ELSE -1 END)), NULL
)


-- name: gather_json
-- Part of a SELECT: JSON as one text, and the length of each in bytes; -1 for none, -2 for one that is not made into text.
--
-- Identifiers: name, there (of the column that says whether there is one).
string_agg({name}, NULL),
string_agg(int4send(coalesce(octet_length({name}), CASE WHEN {there} THEN -2 ELSE -1 END)), NULL)


-- name: gather_texts
-- Part of a SELECT: texts, or strings of bytes, as one, and the length of each in bytes; -1 for none.
--
-- Identifiers: name.
string_agg({name}, NULL), string_agg(int4send(coalesce(octet_length({name}), -1)), NULL)


-- name: gather_integers
-- Part of a SELECT: integers of 4 bytes as their bytes.
--
-- Identifiers: name.
string_agg(int4send({name}), NULL)


-- name: gather_long_integers
-- Part of a SELECT: integers of 8 bytes as their bytes.
--
-- Identifiers: name.
string_agg(int8send({name}), NULL)


-- name: gather_doubles
-- Part of a SELECT: floating-point numbers of 8 bytes as their bytes.
--
-- Identifiers: name.
string_agg(float8send({name}), NULL)


-- name: gather_times
-- Part of a SELECT: times as the bytes of their microseconds since 2000; infinity for none.
--
-- Identifiers: name.
string_agg(timestamptz_send(coalesce({name}, 'infinity'::timestamptz)), NULL)


-- name: gather_foreign_texts
-- Part of a SELECT: texts as one, in UTF-8, and the length of each in bytes; -1 for none.
--
-- Identifiers: name.
string_agg(convert_to({name}, 'UTF8'), NULL),
string_agg(int4send(coalesce(octet_length(convert_to({name}, 'UTF8')), -1)), NULL)
