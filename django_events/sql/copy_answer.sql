-- Hand over what a statement answers with, for spark/reading.py: a row for each 200 of its rows, or fewer if they are large.
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
