-- Tell whoever reads the log that something happened, when this transaction commits.
--
-- Parameters: channel, payload (see LOG_CHANNEL).
SELECT pg_notify(%(channel)s, %(payload)s)
