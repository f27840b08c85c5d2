-- name: light
-- Some events, in their order, if each of them is small: one that isn't comes without metadata, which no event lacks.
--
-- This is how nearly all are read, so nothing is added up and nothing unpacked: how large a value is, and whether it is
-- compressed, stands in its row. Where one is not small, `bounded` reads them all.
-- Times come as text: most handlers never ask for them, and reading a text is all that many drivers are slow at.
-- Literals: bytes. Parts: chosen (the events, with their columns' names, in order).
-- Relies on: whatever the part does; nothing is sorted here.
SELECT
    e.id, e.partition, e.number, e.type, e.key,
    CASE WHEN pg_column_compression(e.value) IS NULL AND pg_column_size(e.value) <= {bytes} THEN e.value END,
    CASE WHEN octet_length(e.body) <= {bytes} THEN e.body END,
    CASE
        WHEN pg_column_compression(e.value) IS NULL AND pg_column_compression(e.metadata) IS NULL
            AND coalesce(pg_column_size(e.value), 0) + coalesce(octet_length(e.body), 0)
                + pg_column_size(e.metadata) <= {bytes}
        THEN e.metadata
    END,
    e.published_at::text, e.logged_at::text
FROM ({chosen}) AS e


-- name: bounded
-- The first of some events, in the order of their ids, as many as have so many bytes together.
--
-- The last row may be one that is too much, or can't be read: it comes without value, body and metadata, and says so.
-- Each says how large it is as it is stored. That one is the first of all, too: a caller that wants it nevertheless asks
-- for it alone, with another number of bytes.
-- What is stored is weighed before any of it is unpacked, and what was unpacked before it is sent.
-- Times come as text: most handlers never ask for them, and reading a text is all that many drivers are slow at.
-- Literals: bytes. Parts: chosen (the events, with their columns' names, in order), value, metadata.
-- Relies on: whatever the part does; nothing is sorted here.
SELECT
    e.id, e.partition, e.number, e.type, e.key,
    CASE WHEN e.total <= {bytes} THEN e.value END,
    CASE WHEN e.total <= {bytes} THEN e.body END,
    CASE WHEN e.total <= {bytes} THEN e.metadata END,
    e.published_at::text, e.logged_at::text,
    e.total > {bytes}, e.size::bigint
FROM (
    SELECT e.*, sum(e.weight) OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT
            {event_columns of e},
            e.size,
            CASE
                WHEN e.metadata IS NULL OR (e.value IS NULL AND e.has_value) THEN {bytes}::float8 + 1
                ELSE octet_length(e.metadata)::float8
                    + coalesce(octet_length(e.value), 0) + coalesce(octet_length(e.body), 0)
            END AS weight
        FROM (
            SELECT
                e.id, e.partition, e.number, e.type, e.key, e.body, e.published_at, e.logged_at, e.size,
                e.value IS NOT NULL AS has_value,
                CASE WHEN e.stored <= {bytes} THEN {value} END AS value,
                CASE WHEN e.stored <= {bytes} THEN {metadata} END AS metadata
            FROM (
                SELECT e.*, sum(e.size) OVER (ORDER BY e.id ROWS UNBOUNDED PRECEDING) AS stored
                FROM (
                    SELECT
                        e.*,
                        pg_column_size(e.metadata)::float8
                            + coalesce(pg_column_size(e.value), 0) + coalesce(octet_length(e.body), 0) AS size
                    FROM ({chosen}) AS e
                ) AS e
            ) AS e
            WHERE e.stored - e.size <= {bytes}
            OFFSET 0
        ) AS e
    ) AS e
) AS e
WHERE e.total - e.weight <= {bytes}
ORDER BY e.id
