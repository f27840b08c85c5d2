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
        consumer_id, partition, position, number, handled, failed, discarded, dead_lettered, attempts, careful_until,
        error, holder
    )
    SELECT id, -1, %(position)s, %(position)s, 0, 0, 0, 0, 0, 0, '', '' FROM consumer
)
SELECT coalesce((SELECT mode FROM django_events_consumer WHERE name = %(name)s AND mode <> 'spark' LIMIT 1), 'spark')
