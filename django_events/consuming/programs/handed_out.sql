-- name: lease_of_token
-- The consumer and topic of a lease of deliveries, and who has it.
--
-- Parameters: token.
-- Relies on: the primary keys of django_events_deliverylease, django_events_consumer and django_events_topic.
SELECT c.name, t.name, l.holder
FROM django_events_deliverylease AS l
JOIN django_events_consumer AS c ON c.id = l.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE l.token = %(token)s


-- name: deliveries_of_token
-- The deliveries that are claimed under a token, with the attempts that are counted and their keys.
--
-- Each is looked up by itself, and `LIMIT` keeps it so: a join, or a comparison with an array, may be planned as a scan of
-- all deliveries of the consumer, after a vacuum of a queue that was empty.
-- Parameters: token.
-- Relies on: the primary keys of django_events_deliverylease and django_events_delivery.
SELECT d.event_id, d.attempts, d.key
FROM django_events_deliverylease AS l
CROSS JOIN LATERAL jsonb_array_elements_text(l.event_ids) AS held (id)
CROSS JOIN LATERAL (
    SELECT d.event_id, d.attempts, d.key
    FROM django_events_delivery AS d
    WHERE d.consumer_id = l.consumer_id AND d.event_id = held.id::bigint AND d.token = l.token
    LIMIT 1
) AS d
WHERE l.token = %(token)s
ORDER BY d.event_id
