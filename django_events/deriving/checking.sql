-- name: chosen
-- Some events of a topic by their ids, as far as they are for a consumer and small enough to be read many at a time.
--
-- Parameters: ids. Literals: topic_id. Identifiers: log. Parts: match.
-- Relies on: the primary key of the log.
SELECT
    e.id, e.partition, e.number, e.type, e.key, e.value::text, e.body, e.metadata::text, e.published_at::text,
    e.logged_at::text
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = ANY(%(ids)s::bigint[]) AND {match} AND pg_column_size(e.value) < 4000


-- name: make_temporary
-- A table of this transaction, like another one and by the same name: it comes first where names are looked up.
--
-- Identifiers: table, served.
CREATE TEMPORARY TABLE {table} (LIKE {served} INCLUDING ALL) ON COMMIT DROP
