-- name: count_of_consumers
-- How many deliveries and dead letters the consumers of a topic have, and how many consumers and positions there are.
--
-- Parameters: topic_id.
-- Relies on: the primary keys of django_events_consumer and django_events_delivery, django_events_deadletter
-- (consumer_id, event_id), django_events_position (consumer_id, partition).
SELECT
    count(*),
    coalesce(sum((SELECT count(*) FROM django_events_position AS p WHERE p.consumer_id = c.id)), 0)::bigint,
    coalesce(sum((SELECT count(*) FROM django_events_delivery AS d WHERE d.consumer_id = c.id)), 0)::bigint,
    coalesce(sum((SELECT count(*) FROM django_events_deadletter AS d WHERE d.consumer_id = c.id)), 0)::bigint
FROM django_events_consumer AS c
WHERE c.topic_id = %(topic_id)s
