-- Delete a delivery of a queue consumer that is skipped, and write it into the history where one is kept.
--
-- In a later statement than lock_delivery.sql. Parameters: consumer_id, event_id, history (whether it is kept), worker
-- (who skips it). Answers with how many were deleted.
-- Relies on: the primary key of django_events_delivery.
WITH gone AS (
    DELETE FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts, d.delivered
),
past AS (
    INSERT INTO django_events_pastdelivery (
        consumer_id, event_id, received_at, first_at, last_at, processed_at, attempts, delivered, outcome, worker
    )
    SELECT
        %(consumer_id)s, gone.event_id, gone.received_at, coalesce(gone.first_at, now.at), coalesce(gone.last_at, now.at),
        now.at, gone.attempts, gone.delivered, 'dead', %(worker)s
    FROM gone
    CROSS JOIN (SELECT clock_timestamp() AS at) AS now
    WHERE %(history)s
)
SELECT count(*) FROM gone
