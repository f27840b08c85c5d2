-- Forget the mark of a writer's batch that was committed.
--
-- Parameters: topic, mark (null: none). Answers with a row if it was there.
-- Relies on: django_events_topic (name), the primary key of django_events_dedupkey.
DELETE FROM django_events_dedupkey
WHERE topic_id = (SELECT t.id FROM django_events_topic AS t WHERE t.name = %(topic)s) AND key = %(mark)s
RETURNING key
