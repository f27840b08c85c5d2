-- Who has a delivery of a queue consumer in hand whose event is going to be removed, if anybody does.
--
-- Parameters: consumer_id, last (the last event that goes).
-- Relies on: django_events_deliverylease (consumer_id).
SELECT l.holder
FROM django_events_deliverylease AS l
WHERE l.consumer_id = %(consumer_id)s
    AND l.leased_until > clock_timestamp()
    AND EXISTS (SELECT FROM jsonb_array_elements_text(l.event_ids) AS hand (event_id) WHERE hand.event_id::bigint <= %(last)s)
LIMIT 1
