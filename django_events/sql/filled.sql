-- Write down how far a queue consumer is filled from the log, and whether its deliveries come with the events now.
--
-- Parameters: consumer_id, filled_until, live. Becoming live takes the topic's head before.
-- Relies on: the primary key of django_events_consumer.
UPDATE django_events_consumer SET filled_until = %(filled_until)s, live = %(live)s WHERE id = %(consumer_id)s
RETURNING id
