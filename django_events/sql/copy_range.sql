-- Hand over a range of a topic's log, in order, for spark/reading.py: a row for each piece of the range.
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
