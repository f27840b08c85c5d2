-- The deliveries of a range of an ordered queue whose key is not that of their event.
--
-- While a key is erased, and after an erasure that was interrupted, the key itself stands in one of both, and what
-- stands in its place in the other. What the log has dropped meanwhile is not looked at.
-- Parameters: most, erased (a regular expression of what stands in the place of an erased key). Literals: consumer_id,
-- topic_id, after, upper. Identifiers: log. Answers with how many there are, the event, and both keys.
-- Relies on: the primary keys of django_events_delivery, of django_events_consumer and of the log.
SELECT count(*) OVER (), d.event_id, d.key, e.key
FROM django_events_consumer AS c
JOIN django_events_delivery AS d ON d.consumer_id = c.id
JOIN {log} AS e ON e.id = d.event_id
WHERE c.id = {consumer_id}
    AND c.ordered
    AND d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {upper}
    AND e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    AND d.key IS DISTINCT FROM e.key
    AND NOT (d.key IS NOT NULL AND e.key IS NOT NULL AND (d.key ~ %(erased)s OR e.key ~ %(erased)s))
ORDER BY d.event_id
LIMIT %(most)s
