-- name: orphaned_deliveries
-- Delete some of the deliveries, or of their history, whose consumers are gone; answers with how many.
--
-- Parameters: most. Identifiers: table.
-- Relies on: the primary keys of django_events_delivery and django_events_pastdelivery, which begin with the consumer.
WITH RECURSIVE owner AS (
    (SELECT d.consumer_id AS id FROM {table} AS d ORDER BY d.consumer_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.consumer_id FROM {table} AS d WHERE d.consumer_id > owner.id ORDER BY d.consumer_id LIMIT 1)
    FROM owner
    WHERE owner.id IS NOT NULL
),
orphan AS (
    SELECT owner.id
    FROM owner
    WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM django_events_consumer AS c WHERE c.id = owner.id)
    ORDER BY owner.id
    LIMIT 1
),
gone AS (
    DELETE FROM {table} AS d
    WHERE d.consumer_id = (SELECT orphan.id FROM orphan)
        AND d.event_id = ANY(
            ARRAY(
                SELECT o.event_id FROM {table} AS o
                WHERE o.consumer_id = (SELECT orphan.id FROM orphan)
                ORDER BY o.event_id
                LIMIT %(most)s
            )
        )
    RETURNING d.event_id
)
SELECT count(*) FROM gone
