-- name: give_back
-- Give back what workers of a queue consumer had claimed that died: no other worker takes it over any more.
--
-- In a later statement than `stand_still`, when no lease is good any more.
-- Parameters: consumer_id. Answers with how many deliveries that were.
-- Relies on: django_events_deliverylease (consumer_id), the primary key of django_events_delivery.
WITH ended AS (
    DELETE FROM django_events_deliverylease WHERE consumer_id = %(consumer_id)s
),
freed AS (
    UPDATE django_events_delivery SET token = NULL
    WHERE consumer_id = %(consumer_id)s AND token IS NOT NULL
    RETURNING event_id
)
SELECT count(*) FROM freed
