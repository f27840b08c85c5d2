-- For this transaction: read by index, whatever the statistics say, and compile nothing.
--
-- The buffer is empty one moment and holds a million events the next, so its statistics are always
-- old. A sequential scan chosen by them reads every dead row that an old snapshot keeps, and the
-- costs that come out of them make PostgreSQL compile a query of a millisecond for 200.
-- Parameters: seqscan, bitmapscan, jit. Answers with what they were.
WITH before AS MATERIALIZED (
    SELECT
        current_setting('enable_seqscan') AS seqscan,
        current_setting('enable_bitmapscan') AS bitmapscan,
        current_setting('jit') AS jit
)
SELECT
    seqscan, bitmapscan, jit,
    set_config('enable_seqscan', %(seqscan)s, true),
    set_config('enable_bitmapscan', %(bitmapscan)s, true),
    set_config('jit', %(jit)s, true)
FROM before
