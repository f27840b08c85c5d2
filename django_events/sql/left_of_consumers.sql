-- How many rows of a table are left of consumers that are gone, by the ids that these had.
--
-- Identifiers: table.
-- Relies on: an index of the table that begins with the consumer.
WITH RECURSIVE owner AS (
    (SELECT d.consumer_id AS id FROM {table} AS d ORDER BY d.consumer_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.consumer_id FROM {table} AS d WHERE d.consumer_id > owner.id ORDER BY d.consumer_id LIMIT 1)
    FROM owner
    WHERE owner.id IS NOT NULL
)
SELECT owner.id, (SELECT count(*) FROM {table} AS d WHERE d.consumer_id = owner.id)
FROM owner
WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM django_events_consumer AS c WHERE c.id = owner.id)
ORDER BY owner.id
