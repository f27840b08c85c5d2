-- Make deliveries of a range of the log, for a queue consumer that is not live.
--
-- In a transaction that has its row locked. A delivery that is there already stays as it is.
-- Literals: consumer_id, ordered (whether its keys matter), topic_id, after, upper. Identifiers: log. Parts: match.
-- Relies on: the primary key of the log.
INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at)
SELECT {consumer_id}, e.id, CASE WHEN {ordered} THEN e.key END, clock_timestamp()
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {match}
ORDER BY e.id
ON CONFLICT (consumer_id, event_id) DO NOTHING
RETURNING event_id
