-- Let this transaction stay open while nothing is asked in it: it holds a lock and no snapshot.
SELECT set_config('idle_in_transaction_session_timeout', '0', true)
