-- Have the position of a queue consumer for oneself, to move it up; nothing if somebody else is at it.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT p.position
FROM django_events_position AS p
WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1
FOR NO KEY UPDATE OF p SKIP LOCKED
