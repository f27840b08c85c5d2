-- Copy an event of the log into the dead letters of a consumer, inside the server: it may be too large for anybody.
--
-- Literals: topic_id, event_id. Identifiers: log. Parameters: consumer_id, attempts, error, traceback.
-- Answers with nothing where the log has no such event. A dead letter that is there already is an error.
-- Relies on: the primary key of the log.
INSERT INTO django_events_deadletter (
    consumer_id, event_id, partition, number, type, key, value, body, metadata, published_at, logged_at,
    attempts, error, traceback
)
SELECT
    %(consumer_id)s, e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at,
    e.logged_at, %(attempts)s, %(error)s, %(traceback)s
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = {event_id}
RETURNING id
