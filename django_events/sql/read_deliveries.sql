-- The events of some deliveries, in order: a part of bounded.sql.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: first, last. Identifiers: log. Parameters: topic_id, event_ids.
-- Relies on: the primary key of the log.
SELECT e.id, e.partition, e.number, e.type, e.key, e.value, e.body, e.metadata, e.published_at, e.logged_at
FROM {log} AS e
WHERE e.topic_id = %(topic_id)s AND e.id = ANY(%(event_ids)s::bigint[]) AND e.id >= {first} AND e.id <= {last}
ORDER BY e.id
