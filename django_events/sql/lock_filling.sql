-- Have a queue consumer for oneself to fill it from the log, if it is not live and nobody else does.
--
-- Parameters: consumer_id. Answers with the id up to which it is filled.
-- Relies on: the primary key of django_events_consumer.
SELECT filled_until FROM django_events_consumer WHERE id = %(consumer_id)s AND NOT live FOR NO KEY UPDATE SKIP LOCKED
