-- Before a COPY into the buffer: look the topic up, and wake the transfer if it sleeps.
--
-- Parameters: topic, wake (null: decide by the server). Answers with the topic's id.
-- Relies on: django_events_topic (name).
SELECT django_events_open(%(topic)s::text, %(wake)s::boolean)
