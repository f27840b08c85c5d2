-- Become the one writer of these topics for this transaction, leaving out those that have one.
--
-- Parameters: topic_ids.
-- Relies on: the primary key of django_events_topichead.
SELECT topic_id
FROM django_events_topichead
WHERE topic_id = ANY(%(topic_ids)s::int[])
ORDER BY topic_id
FOR UPDATE SKIP LOCKED
