-- Have the position of a queue consumer for oneself, to move it up; nothing if somebody else is at it.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT position FROM django_events_position WHERE consumer_id = %(consumer_id)s AND partition = -1
FOR UPDATE SKIP LOCKED
