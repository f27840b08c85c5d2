-- Remember the batch that a sink publishes in this transaction.
--
-- Parameters: sink, batch, events.
-- Relies on: the primary key of django_events_sinkbatch.
UPDATE django_events_sinkbatch
SET batch = %(batch)s, events = %(events)s, published_at = clock_timestamp()
WHERE sink = %(sink)s
RETURNING batch
