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
