-- The next events of a key that wait in a table and are not erased yet, or whose key is to go.
--
-- Literals: topic_id, after, upper, most. Identifiers: table. Parameters: key, new_key (null to keep the key).
-- Relies on: the primary key of the table.
SELECT e.id
FROM {table} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
    AND (e.value IS NOT NULL OR e.body IS NOT NULL OR %(new_key)s::text IS NOT NULL)
ORDER BY e.id
LIMIT {most}
