-- name: stage
-- Stage events of a task of Spark, in the order of the rows.
COPY django_events_stagedevent (attempt, {buffered_columns}) FROM STDIN


-- name: lock_attempts
-- Wait for an earlier try to publish the same attempts, whose answer was lost; keep others out until this transaction
-- ends.
--
-- Parameters: attempts.
SELECT pg_advisory_xact_lock(hashtextextended(%(attempts)s::uuid[]::text, 0))


-- name: publish_staged
-- Publish what tasks of Spark have staged, in the order of the tasks.
--
-- What no reader could make into text is refused, as django_events_publish does.
-- Parameters: attempts (in their order). Answers with the number of events.
-- Relies on: django_events_staged_attempt (attempt, id).
WITH staged AS (
    DELETE FROM django_events_stagedevent WHERE attempt = ANY(%(attempts)s::uuid[])
    RETURNING id, attempt, {buffered_columns}
), published AS (
    INSERT INTO django_events_bufferedevent ({buffered_columns})
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
    JOIN unnest(%(attempts)s::uuid[]) WITH ORDINALITY AS task (attempt, ordinal) ON task.attempt = s.attempt
    ORDER BY task.ordinal, s.id
    RETURNING 1
)
SELECT count(*) FROM published


-- name: lock_sink
-- The last batch that a sink has published, -1 for a new one, with its number of events, its query and the run of it.
--
-- No other session publishes for the sink until this transaction ends.
-- Parameters: sink, query (the id of a streaming query, or nothing).
-- Relies on: the primary key of django_events_sinkbatch.
INSERT INTO django_events_sinkbatch AS s (sink, batch, events, query, run)
VALUES (%(sink)s, -1, 0, %(query)s, '')
ON CONFLICT (sink) DO UPDATE SET sink = excluded.sink
RETURNING s.batch, s.events, s.query, s.run


-- name: note_batch
-- Remember the batch that a sink publishes in this transaction.
--
-- Parameters: sink, batch, events, run.
-- Relies on: the primary key of django_events_sinkbatch.
UPDATE django_events_sinkbatch
SET batch = %(batch)s, events = %(events)s, run = %(run)s, published_at = clock_timestamp()
WHERE sink = %(sink)s
RETURNING batch


-- name: unstage
-- Delete what tasks of Spark have staged; answers with how many rows that were.
--
-- Parameters: attempts.
-- Relies on: django_events_staged_attempt (attempt, id).
WITH gone AS (
    DELETE FROM django_events_stagedevent WHERE attempt = ANY(%(attempts)s::uuid[]) RETURNING 1
)
SELECT count(*) FROM gone
