-- What the history of a topic's queue consumers says of events that the log never had.
--
-- Parameters: topic_id, last_id, most. Answers with how many there are, consumer and event.
-- Relies on: the primary key of django_events_pastdelivery.
SELECT count(*) OVER (), c.name, past.event_id
FROM django_events_consumer AS c
JOIN django_events_pastdelivery AS past ON past.consumer_id = c.id AND past.event_id > %(last_id)s
WHERE c.topic_id = %(topic_id)s
ORDER BY c.name, past.event_id
LIMIT %(most)s
