-- Have one delivery of a queue consumer for oneself, and the lease of who has it in hand: first that, as who settles does.
--
-- Parameters: consumer_id, event_id. Answers with nothing where there is no such delivery; else whether it is free,
-- because nobody has it or the lease is over; who has it; the attempts that are counted, and the last error.
-- Relies on: the primary keys of django_events_delivery and django_events_deliverylease.
WITH lease AS MATERIALIZED (
    SELECT l.token, l.holder, l.leased_until <= clock_timestamp() AS lapsed
    FROM django_events_delivery AS d
    JOIN django_events_deliverylease AS l ON l.token = d.token
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
    FOR UPDATE OF l
)
SELECT d.token IS NULL OR coalesce(lease.lapsed, false), lease.holder, d.attempts, d.error
FROM django_events_delivery AS d
LEFT JOIN lease ON lease.token = d.token
WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
FOR UPDATE OF d
