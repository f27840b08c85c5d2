-- Tell whoever reads the log that events came, when this transaction commits.
--
-- Parameters: channel, topic_ids (a list with commas; empty: look at all topics).
SELECT pg_notify(%(channel)s, %(topic_ids)s)
