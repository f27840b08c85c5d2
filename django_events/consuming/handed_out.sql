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
-- They are found by an array, because a join may be planned as a scan of all deliveries.
-- Parameters: token.
-- Relies on: the primary keys of django_events_deliverylease and django_events_delivery.
SELECT d.event_id, d.attempts, d.key
FROM django_events_deliverylease AS l
CROSS JOIN LATERAL (
    SELECT d.event_id, d.attempts, d.key
    FROM django_events_delivery AS d
    WHERE d.consumer_id = l.consumer_id
        AND d.event_id = ANY(ARRAY(SELECT held.id::bigint FROM jsonb_array_elements_text(l.event_ids) AS held (id)))
        AND d.token = l.token
) AS d
WHERE l.token = %(token)s
ORDER BY d.event_id
