-- As the first statement of a transaction that only reads: everything in it sees the same moment. It waits for nobody's
-- lock for long, and takes as long as it takes. Those behind it need no snapshot, so locks can be taken before there is one.
-- A host that vanishes keeps neither the snapshot nor a lock.
--
-- Literals: vanished_after (how long it may say nothing, or take no answer).
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL lock_timeout = '2s';
SET LOCAL statement_timeout = 0;
SET LOCAL jit = off;
SET LOCAL row_security = off;
SET LOCAL idle_in_transaction_session_timeout = {vanished_after};
SET LOCAL tcp_user_timeout = {vanished_after}
