-- Hand over what a statement answers with, for spark/reading.py: a row for each 200 of its rows.
--
-- Parts: asked, gathered.
COPY (
    SELECT {gathered}
    FROM (SELECT answer.*, (row_number() OVER () - 1) / 200 AS piece FROM ({asked}) AS answer) AS numbered
    GROUP BY piece
    ORDER BY piece
) TO STDOUT (FORMAT binary)
