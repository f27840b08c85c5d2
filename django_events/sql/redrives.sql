-- Whether dead letters of a queue consumer can be handled again now.
--
-- Parameters: consumer_id. Parts: redrive.
-- Relies on: what redrive_of_queue.sql does.
SELECT d.id
FROM django_events_consumer AS c
CROSS JOIN django_events_deadletter AS d
WHERE c.id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND {redrive}
LIMIT 1
