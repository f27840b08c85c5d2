-- Up to which ticket the next events of a topic go that wait in a table: in the buffer, scheduled or staged.
--
-- Literals: topic_id, after, most. Identifiers: table. Answers with null if there are no more.
-- Relies on: the primary key of the table.
SELECT max(waits.id) FROM (
    SELECT e.id FROM {table} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} ORDER BY e.id LIMIT {most}
) AS waits
