-- name: verify_dead_letters
-- The dead letters of a topic's consumers that can't be: of an event that the log never had, or another one than it has,
-- or that a stream has yet to pass.
--
-- A queue has dead letters beyond its position: that is before its oldest delivery.
-- Parameters: last_id, most. Literals: topic_id. Identifiers: log. Answers with how many there are, the fault, consumer,
-- event, its partition and number, those in the log, and the position.
-- Relies on: django_events_deadletter (consumer_id, event_id), django_events_position (consumer_id, partition), the
-- primary key of the log.
WITH looked AS (
    SELECT
        d.consumer_id, d.event_id, d.partition, d.number, e.partition AS logged_in, e.number AS logged_as, p.position,
        CASE
            WHEN d.event_id NOT BETWEEN 1 AND %(last_id)s THEN 'beyond'
            WHEN (d.partition, d.number) <> (e.partition, e.number) THEN 'differs'
            WHEN c.mode = 'stream' AND d.event_id > p.position THEN 'ahead'
        END AS fault
    FROM django_events_consumer AS c
    JOIN django_events_deadletter AS d ON d.consumer_id = c.id
    LEFT JOIN {log} AS e ON e.topic_id = {topic_id} AND e.id = d.event_id
    LEFT JOIN django_events_position AS p
        ON p.consumer_id = c.id AND p.partition = CASE WHEN c.partitioned THEN d.partition ELSE -1 END
    WHERE c.topic_id = {topic_id}
)
SELECT
    count(*) OVER (), looked.fault, c.name, looked.event_id, looked.partition, looked.number,
    looked.logged_in, looked.logged_as, looked.position
FROM looked
JOIN django_events_consumer AS c ON c.id = looked.consumer_id
WHERE looked.fault IS NOT NULL
ORDER BY looked.fault, c.name, looked.event_id
LIMIT %(most)s


-- name: verify_copies
-- The dead letters of a range of a consumer whose copy is not what the event is.
--
-- What was erased in one of both is not compared: an erasure comes to the other, or was interrupted. What the log has
-- dropped can't be compared. Parameters: most, erased (a regular expression of what stands in the place of an erased key).
-- Literals: consumer_id, topic_id, after, upper. Identifiers: log. Answers with how many there are, the event, its
-- partition, and the first column that differs.
-- Relies on: django_events_deadletter (consumer_id, event_id), the primary key of the log.
SELECT count(*) OVER (), d.event_id, d.partition, differs.what
FROM django_events_deadletter AS d
JOIN {log} AS e ON e.id = d.event_id
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN d.type <> e.type THEN 'type'
        WHEN d.key IS DISTINCT FROM e.key
            AND NOT (d.key IS NOT NULL AND e.key IS NOT NULL AND (d.key ~ %(erased)s OR e.key ~ %(erased)s)) THEN 'key'
        WHEN d.published_at <> e.published_at THEN 'published_at'
        WHEN d.logged_at <> e.logged_at THEN 'logged_at'
        WHEN (d.value IS NULL AND d.body IS NULL AND d.metadata -> 'erased' IS NOT NULL)
            OR (e.value IS NULL AND e.body IS NULL) THEN NULL
        WHEN d.value IS DISTINCT FROM e.value THEN 'value'
        WHEN d.body IS DISTINCT FROM e.body THEN 'body'
        WHEN d.metadata <> e.metadata THEN 'metadata'
    END AS what
) AS differs
WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {upper}
    AND e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    AND differs.what IS NOT NULL
ORDER BY d.event_id
LIMIT %(most)s


-- name: next_dead_letters
-- Up to which event the next dead letters of a consumer go.
--
-- Literals: consumer_id, after, last_id, most. Answers with null if there are no more.
-- Relies on: django_events_deadletter (consumer_id, event_id).
SELECT max(next.event_id) FROM (
    SELECT d.event_id
    FROM django_events_deadletter AS d
    WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {last_id}
    ORDER BY d.event_id
    LIMIT {most}
) AS next
