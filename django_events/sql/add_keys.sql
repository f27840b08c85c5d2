-- Give the deliveries of a queue consumer the keys of their events, because it handles them in order from now on.
--
-- Nobody has one of them in hand, and nobody claims one meanwhile: see stand_still.sql.
-- Identifiers: log. Parameters: consumer_id.
-- Relies on: the primary keys of django_events_delivery and of the log, django_events_deadletter (consumer_id, event_id).
UPDATE django_events_delivery AS d
SET key = coalesce(e.key, dead.key)
FROM django_events_delivery AS own
LEFT JOIN {log} AS e ON e.id = own.event_id
LEFT JOIN django_events_deadletter AS dead ON dead.consumer_id = own.consumer_id AND dead.event_id = own.event_id
WHERE own.consumer_id = %(consumer_id)s
    AND d.consumer_id = own.consumer_id
    AND d.event_id = own.event_id
RETURNING d.event_id
