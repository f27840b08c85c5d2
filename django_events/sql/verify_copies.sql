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
