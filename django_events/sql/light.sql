-- Some events, in their order, if each of them is small: one that isn't comes without metadata, which no event lacks.
--
-- This is how nearly all are read, so nothing is added up and nothing unpacked: how large a value is, and whether it is
-- compressed, stands in its row. Where one is not small, bounded.sql reads them all.
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
