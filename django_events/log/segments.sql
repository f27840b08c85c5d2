-- name: segments
-- The attached segments of topics' logs with their bounds, in order.
--
-- One that is dropped in this moment may still be in the catalog, and has no bounds any more. Their text is
-- FOR VALUES FROM ('1') TO ('101'), taken apart without a regular expression, which took four times as long as the rest.
-- Parameters: logs (names of tables).
-- Relies on: the catalog's own indexes.
SELECT log.name, segment.relname, bounds.first, bounds."end"
FROM unnest(%(logs)s::text[]) AS log (name)
JOIN pg_inherits AS link ON link.inhparent = to_regclass(log.name) AND NOT link.inhdetachpending
JOIN pg_class AS segment ON segment.oid = link.inhrelid
CROSS JOIN LATERAL (
    SELECT
        nullif(split_part(bound.expression, '''', 2), '')::bigint AS first,
        nullif(split_part(bound.expression, '''', 4), '')::bigint AS "end"
    FROM pg_get_expr(segment.relpartbound, segment.oid) AS bound (expression)
    WHERE bound.expression LIKE 'FOR VALUES FROM (%%'
) AS bounds
WHERE bounds.first IS NOT NULL AND bounds."end" IS NOT NULL
ORDER BY log.name, bounds.first


-- name: create_log
-- Make the table of one topic's log, not attached yet. Its comment says which topic it belongs to.
--
-- Identifiers: log, name (a literal).
CREATE TABLE {log} (LIKE django_events_event) PARTITION BY RANGE (id);
COMMENT ON TABLE {log} IS {name}


-- name: as_above
-- Give a new table of the log the rights and the owner of the one above it, whichever role made it.
--
-- So readers go on reading a topic by its own table, and another role that makes segments may attach them. Rights first:
-- its maker can't give them any more when another role owns it.
-- Literals: above, table (names).
-- Relies on: the catalog's own indexes.
DO $block$
DECLARE
    above record;
    given record;
BEGIN
    SELECT c.relowner, c.relacl INTO above FROM pg_class AS c WHERE c.oid = to_regclass({above});
    FOR given IN SELECT acl.* FROM aclexplode(above.relacl) AS acl WHERE acl.grantee <> above.relowner LOOP
        EXECUTE format(
            'GRANT %%s ON %%s TO %%s%%s',
            given.privilege_type,
            to_regclass({table}),
            CASE WHEN given.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END,
            CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        );
    END LOOP;
    IF above.relowner <> (SELECT c.relowner FROM pg_class AS c WHERE c.oid = to_regclass({table})) THEN
        EXECUTE format('ALTER TABLE %%s OWNER TO %%I', to_regclass({table}), pg_get_userbyid(above.relowner));
    END IF;
END
$block$


-- name: attach_log
-- Attach the log of a topic to the root. It is small or empty, so looking through it takes no time.
--
-- Identifiers: log, topic_id (a literal).
ALTER TABLE django_events_event ATTACH PARTITION {log} FOR VALUES IN ({topic_id})


-- name: index_partition
-- The index by which a partition of a topic is read, and its last number is found.
--
-- Identifiers: log, index.
CREATE INDEX IF NOT EXISTS {index} ON {log} (partition, id)


-- name: index_timeline
-- The index by which the events of one key are read, or of all keys that begin alike (keys have the collation C).
--
-- Identifiers: log, index.
CREATE INDEX IF NOT EXISTS {index} ON {log} (key, id)


-- name: cut_segment
-- Let a segment end earlier, behind its last event. Its rows are looked through once.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first (id of the segment), ends (the id behind its last one).
-- Relies on: the catalog's own indexes.
SELECT django_events_cut_segment(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)


-- name: drop_segment
-- Drop the oldest segment of a topic's log, or an empty one.
--
-- All readers and writers of the log are locked out meanwhile, so ask for the lock for a moment only. The function has
-- the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first (id of the segment). Answers with whether it was there.
-- Relies on: the catalog's own indexes.
SELECT django_events_drop_segment(%(topic_id)s::integer, %(first)s::bigint)


-- name: make_segment
-- Make a segment of a topic's log and attach it. Readers and writers of the log go on meanwhile.
--
-- The function has the rights of the log's owner: this role need not own anything.
-- Parameters: topic_id, first, ends (the ids from first up to, not including, ends).
-- Relies on: the catalog's own indexes.
SELECT django_events_make_segment(%(topic_id)s::integer, %(first)s::bigint, %(ends)s::bigint)
