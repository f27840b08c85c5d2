-- name: lowest_positions
-- The lowest position of each consumer, how many of the positions that a worker knows it still has, whether its row says
-- that it can't be served, and its revision.
--
-- Parameters: position_ids.
-- Relies on: the primary keys of django_events_position and django_events_consumer.
SELECT
    p.consumer_id,
    min(p.position),
    count(*),
    (SELECT c.failure <> '' FROM django_events_consumer AS c WHERE c.id = p.consumer_id),
    (SELECT c.revision FROM django_events_consumer AS c WHERE c.id = p.consumer_id)
FROM django_events_position AS p
WHERE p.id = ANY(%(position_ids)s::bigint[])
GROUP BY p.consumer_id
