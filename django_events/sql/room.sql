-- Up to which id the segments of topics go, not counting the last segment, which is kept in reserve.
--
-- Parameters: topic_ids, logs (their tables' names; arrays of one length).
-- Relies on: the catalog's own indexes.
SELECT
    log.topic_id,
    max((regexp_match(pg_get_expr(segment.relpartbound, segment.oid), 'FROM \(''(\d+)''\)'))[1]::bigint) - 1
FROM unnest(%(topic_ids)s::int[], %(logs)s::text[]) AS log (topic_id, name)
JOIN pg_inherits AS link ON link.inhparent = to_regclass(log.name)
JOIN pg_class AS segment ON segment.oid = link.inhrelid
WHERE NOT link.inhdetachpending
GROUP BY log.topic_id
