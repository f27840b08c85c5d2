-- A dead letter was handled after all.
--
-- Parameters: dead_letter_id.
-- Relies on: the primary key of django_events_deadletter.
DELETE FROM django_events_deadletter WHERE id = %(dead_letter_id)s RETURNING id
