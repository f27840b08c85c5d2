-- Give up waiting for locks after a while, in this transaction.
--
-- Parameters: timeout, like '2s'.
SELECT set_config('lock_timeout', %(timeout)s, true)
