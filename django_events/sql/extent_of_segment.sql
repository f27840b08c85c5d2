-- How large a segment is on disk, its indexes included, and when its first and its last event were logged.
--
-- Identifiers: segment. Literals: name.
-- Relies on: the primary key of the segment.
SELECT
    {name} AS name,
    pg_total_relation_size({name}::regclass),
    (SELECT e.logged_at FROM {segment} AS e ORDER BY e.topic_id, e.id LIMIT 1),
    (SELECT e.logged_at FROM {segment} AS e ORDER BY e.topic_id DESC, e.id DESC LIMIT 1)
