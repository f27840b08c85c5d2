-- How many events of a key wait in a table and are not erased yet.
--
-- Literals: topic_id, after, upper. Identifiers: table. Parameters: key.
-- Relies on: the primary key of the table.
SELECT count(*)
FROM {table} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
    AND (e.value IS NOT NULL OR e.body IS NOT NULL)
