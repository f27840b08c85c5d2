-- At which isolation level the transaction is.
SELECT current_setting('transaction_isolation')
