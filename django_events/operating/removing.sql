-- name: waiting_in_topic
-- How many events of a topic are in the buffer, how many are scheduled, and how many dedup keys are taken.
--
-- Parameters: topic_id.
-- Relies on: the primary keys of the buffer and of the dedup keys, which begin with the topic.
SELECT
    (SELECT count(*) FROM django_events_bufferedevent AS b WHERE b.topic_id = %(topic_id)s),
    (SELECT count(*) FROM django_events_scheduledevent AS s WHERE s.topic_id = %(topic_id)s),
    (SELECT count(*) FROM django_events_dedupkey AS d WHERE d.topic_id = %(topic_id)s)
