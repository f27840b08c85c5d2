-- A streaming query has read up to an id.
--
-- Parameters: name, topic_id, position. Answers with nothing if it is no consumer of the topic any more.
-- Relies on: django_events_consumer (name, topic_id), django_events_position (consumer_id, partition).
UPDATE django_events_position AS p
SET
    handled = p.handled + greatest(%(position)s - p.position, 0),
    position = greatest(%(position)s, p.position),
    number = greatest(%(position)s, p.number),
    served_at = clock_timestamp()
FROM django_events_consumer AS c
WHERE c.name = %(name)s AND c.topic_id = %(topic_id)s AND c.mode = 'spark' AND p.consumer_id = c.id
RETURNING p.id
