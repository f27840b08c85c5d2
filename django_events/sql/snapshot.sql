-- As the first statement of a transaction that only reads: everything in it sees the same moment. It waits for nobody's
-- lock for long, and takes as long as it takes. Those behind it need no snapshot, so locks can be taken before there is one.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL lock_timeout = '2s';
SET LOCAL statement_timeout = 0;
SET LOCAL jit = off
