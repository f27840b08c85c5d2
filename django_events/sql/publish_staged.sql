-- Publish what tasks of Spark have staged, in the order of the tasks.
--
-- Parameters: attempts (in their order). Answers with the number of events.
-- Relies on: django_events_staged_attempt (attempt, id).
WITH staged AS (
    DELETE FROM django_events_stagedevent WHERE attempt = ANY(%(attempts)s::uuid[])
    RETURNING id, attempt, topic_id, partition, type, key, value, body, metadata
), published AS (
    INSERT INTO django_events_bufferedevent (topic_id, partition, type, key, value, body, metadata)
    SELECT s.topic_id, s.partition, s.type, s.key, s.value, s.body, s.metadata
    FROM staged AS s
    JOIN unnest(%(attempts)s::uuid[]) WITH ORDINALITY AS task (attempt, place) ON task.attempt = s.attempt
    ORDER BY task.place, s.id
    RETURNING 1
)
SELECT count(*) FROM published
