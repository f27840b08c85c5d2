-- The id up to which all deliveries of a queue consumer are there: what is behind it comes later.
--
-- Literals: topic_id, after. Identifiers: log. Parameters: consumer_id.
-- Relies on: the primary keys of the log and of django_events_consumer.
SELECT CASE WHEN c.live THEN coalesce(last.id, 0) ELSE c.filled_until END
FROM django_events_consumer AS c
LEFT JOIN (
    SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {after} ORDER BY e.id DESC LIMIT 1
) AS last ON true
WHERE c.id = %(consumer_id)s
