-- name: follow_on
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


-- name: follow
-- Register a streaming query of Spark as a consumer of a topic, unless it is; answers with the mode of who has the name.
--
-- That is another one than Spark's if it is a consumer of Django, of whatever topic. The caller holds the topic's head.
-- Parameters: name, topic_id, position (the id up to which it has read).
-- Relies on: django_events_consumer (name, topic_id).
WITH consumer AS (
    INSERT INTO django_events_consumer (name, topic_id, partitioned, mode, ordered, live, filled_until)
    VALUES (%(name)s, %(topic_id)s, false, 'spark', false, false, 0)
    ON CONFLICT (name, topic_id) DO NOTHING
    RETURNING id
), at AS (
    INSERT INTO django_events_position (
        consumer_id, partition, position, number, handled, failed, ignored, dead_lettered, attempts, careful_until,
        error, holder
    )
    SELECT id, -1, %(position)s, %(position)s, 0, 0, 0, 0, 0, 0, '', '' FROM consumer
)
SELECT coalesce((SELECT mode FROM django_events_consumer WHERE name = %(name)s AND mode <> 'spark' LIMIT 1), 'spark')


-- name: step_back
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
