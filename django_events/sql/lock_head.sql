-- Become the one writer of a topic for this transaction, waiting for the one before.
--
-- Parameters: topic_id.
-- Relies on: the primary key of django_events_topichead.
SELECT topic_id FROM django_events_topichead WHERE topic_id = %(topic_id)s FOR UPDATE
