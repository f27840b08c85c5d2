-- Up to which event the next deliveries of a queue consumer go.
--
-- Literals: consumer_id, after, last_id, most. Answers with null if there are no more.
-- Relies on: the primary key of django_events_delivery.
SELECT max(next.event_id) FROM (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {last_id}
    ORDER BY d.event_id
    LIMIT {most}
) AS next
