-- Delete some of a queue consumer's history that is older than it is to be kept, or all of it where none is kept any
-- more; answers with how many rows.
--
-- Parameters: consumer_id, most.
-- Relies on: django_events_pastdelivery (consumer_id, processed_at), the primary key of django_events_consumer.
WITH old AS MATERIALIZED (
    SELECT p.event_id, p.processed_at
    FROM django_events_consumer AS c
    JOIN django_events_pastdelivery AS p ON p.consumer_id = c.id AND p.processed_at < clock_timestamp() - coalesce(c.history, '0')
    WHERE c.id = %(consumer_id)s
    ORDER BY p.processed_at
    LIMIT %(most)s
),
gone AS (
    DELETE FROM django_events_pastdelivery AS p
    USING old
    WHERE p.consumer_id = %(consumer_id)s AND p.event_id = old.event_id AND p.processed_at = old.processed_at
    RETURNING p.event_id
)
SELECT count(*) FROM gone
