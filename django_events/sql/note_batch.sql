-- Remember the batch that a sink publishes in this transaction.
--
-- Parameters: sink, batch, events, run.
-- Relies on: the primary key of django_events_sinkbatch.
UPDATE django_events_sinkbatch
SET batch = %(batch)s, events = %(events)s, run = %(run)s, published_at = clock_timestamp()
WHERE sink = %(sink)s
RETURNING batch
