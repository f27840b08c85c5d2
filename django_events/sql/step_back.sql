-- A streaming query begins again before what it has read: say so, and note it as a rewind.
--
-- Its checkpoint decides where it reads. What is not read again would be lost to it, were it removed meanwhile.
-- Parameters: name, topic_id, position.
-- Relies on: django_events_consumer (name, topic_id), django_events_position (consumer_id, partition).
WITH moved AS (
    UPDATE django_events_position AS p
    SET position = %(position)s, number = %(position)s
    FROM django_events_consumer AS c
    JOIN django_events_topic AS t ON t.id = c.topic_id
    JOIN django_events_position AS before ON before.consumer_id = c.id
    WHERE c.name = %(name)s AND c.topic_id = %(topic_id)s AND before.id = p.id AND p.position > %(position)s
    RETURNING c.name AS consumer, t.name AS topic, before.position AS before
)
INSERT INTO django_events_intervention (at, by, action, consumer, topic, details)
SELECT
    clock_timestamp(), 'spark', 'rewind', consumer, topic,
    jsonb_build_object('partition', -1, 'before', before, 'after', %(position)s::bigint, 'to', 'its checkpoint')
FROM moved
RETURNING consumer
