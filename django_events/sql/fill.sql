-- Make deliveries of a range of the log, for a queue consumer that is not live.
--
-- In a transaction that has its row locked. A delivery that is there already stays as it is.
-- Literals: consumer_id, topic_id, after, upper. Identifiers: log. Parts: match. Answers with how many were made.
-- Relies on: the primary keys of the log and of django_events_consumer.
WITH made AS (
    INSERT INTO django_events_delivery (consumer_id, event_id, key, received_at, visible_at)
    SELECT
        {consumer_id}, e.id, CASE WHEN c.ordered THEN e.key END, clock_timestamp(),
        CASE WHEN e.logged_at + c.delay > clock_timestamp() THEN e.logged_at + c.delay END
    FROM {log} AS e
    JOIN django_events_consumer AS c ON c.id = {consumer_id}
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {match}
    ORDER BY e.id
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
SELECT count(*) FROM made
