-- The lease of a position whose time is over.
--
-- Parameters: position_id.
-- Relies on: the primary key of django_events_position.
SELECT token
FROM django_events_position
WHERE id = %(position_id)s AND token IS NOT NULL AND leased_until <= clock_timestamp()
