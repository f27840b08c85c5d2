-- Whether a topic has, or ever had, events in its log. Those in the buffer have no partition yet.
--
-- Parameters: topic_id.
-- Relies on: the primary keys of the heads and the log.
SELECT
    EXISTS (SELECT FROM django_events_event WHERE topic_id = %(topic_id)s)
    OR EXISTS (SELECT FROM django_events_topichead WHERE topic_id = %(topic_id)s AND id_floor > 0)
