-- The last batch that a sink has published, -1 for a new one, with its number of events, its query and the run of it.
--
-- Nobody else publishes for the sink until this transaction ends.
-- Parameters: sink, query (the id of a streaming query, or nothing).
-- Relies on: the primary key of django_events_sinkbatch.
INSERT INTO django_events_sinkbatch AS s (sink, batch, events, query, run)
VALUES (%(sink)s, -1, 0, %(query)s, '')
ON CONFLICT (sink) DO UPDATE SET sink = excluded.sink
RETURNING s.batch, s.events, s.query, s.run
