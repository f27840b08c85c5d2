-- Publish what tasks of Spark have staged, in the order of the tasks.
--
-- What no reader could make into text is refused, as django_events_publish does.
-- Parameters: attempts (in their order). Answers with the number of events.
-- Relies on: django_events_staged_attempt (attempt, id).
WITH staged AS (
    DELETE FROM django_events_stagedevent WHERE attempt = ANY(%(attempts)s::uuid[])
    RETURNING id, attempt, topic_id, partition, type, key, value, body, metadata
), published AS (
    INSERT INTO django_events_bufferedevent (topic_id, partition, type, key, value, body, metadata)
    SELECT
        s.topic_id, s.partition, s.type, s.key,
        CASE
            WHEN pg_column_size(s.value) > 4000 OR pg_column_compression(s.value) IS NOT NULL
                THEN django_events_checked(s.value)
            ELSE s.value
        END,
        s.body,
        CASE
            WHEN pg_column_size(s.metadata) > 4000 OR pg_column_compression(s.metadata) IS NOT NULL
                THEN django_events_checked(s.metadata)
            ELSE s.metadata
        END
    FROM staged AS s
    JOIN unnest(%(attempts)s::uuid[]) WITH ORDINALITY AS task (attempt, place) ON task.attempt = s.attempt
    ORDER BY task.place, s.id
    RETURNING 1
)
SELECT count(*) FROM published
