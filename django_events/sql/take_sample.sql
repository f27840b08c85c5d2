-- Store the sample of the current minute, unless somebody else was quicker. Answers with a row if it is stored.
--
-- Parameters: published, handled, lag, buffered, topics and consumers (JSON).
-- Relies on: the primary key of django_events_sample.
INSERT INTO django_events_sample (at, published, handled, lag, buffered, topics, consumers)
VALUES (
    date_trunc('minute', clock_timestamp()), %(published)s, %(handled)s, %(lag)s, %(buffered)s,
    %(topics)s::jsonb, %(consumers)s::jsonb
)
ON CONFLICT (at) DO NOTHING
RETURNING at
