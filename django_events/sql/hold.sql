-- As the first statement of a handler's transaction: whoever takes the lease over finds it by this lock.
--
-- It ends with the transaction, and no other transaction has to wait for it but the one that takes over. If it can't be
-- had, somebody takes over now, or a transaction of this lease was prepared and has it for as long as it is. By the
-- setting, which ends with it too, settling finds out that it is still the same transaction.
-- A site's limit for idle transactions is meant for pages: here the lease and the consumer's timeout are the limit.
-- Parameters: token.
SELECT
    pg_try_advisory_xact_lock(%(token)s),
    set_config('django_events.token', %(token)s::text, true),
    set_config('idle_in_transaction_session_timeout', '0', true)
