-- name: containing
-- The events between two ids that contain a text, newest first: in the value or the metadata as JSON, or in the body.
--
-- The columns with an index come first, so that no payload is made into text for nothing.
-- Literals: topic_id, lower, upper (the ids looked at). Identifiers: log. Parts: value, metadata (as text).
-- Parameters: type, key, key_prefix, partition (null for any), patterns (for ILIKE), bytes (null where no body is looked
-- at), most.
-- Relies on: the primary key of the log.
SELECT found.id, found.value, found.metadata
FROM (
    SELECT e.id, e.body, {value} AS value, {metadata} AS metadata
    FROM {log} AS e
    WHERE e.topic_id = {topic_id}
        AND e.id >= {lower}
        AND e.id < {upper}
        AND (%(partition)s::int IS NULL OR e.partition = %(partition)s)
        AND (%(type)s::text IS NULL OR e.type = %(type)s)
        AND (%(key)s::text IS NULL OR e.key = %(key)s)
        AND (%(key_prefix)s::text IS NULL OR starts_with(e.key, %(key_prefix)s))
    OFFSET 0
) AS found
WHERE found.value ILIKE ANY (%(patterns)s::text[])
    OR found.metadata ILIKE ANY (%(patterns)s::text[])
    OR position(%(bytes)s::bytea IN found.body) > 0
ORDER BY found.id DESC
LIMIT %(most)s
