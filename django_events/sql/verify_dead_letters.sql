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
