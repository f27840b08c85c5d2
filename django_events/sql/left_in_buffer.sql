-- The topics that events in the buffer are of, and that are gone: nobody moves those.
--
-- Answers with the ids that the topics had, and how many events there are.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH RECURSIVE owner AS (
    (SELECT b.topic_id AS id FROM django_events_bufferedevent AS b ORDER BY b.topic_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT b.topic_id FROM django_events_bufferedevent AS b WHERE b.topic_id > owner.id ORDER BY b.topic_id LIMIT 1
    )
    FROM owner
    WHERE owner.id IS NOT NULL
)
SELECT owner.id, (SELECT count(*) FROM django_events_bufferedevent AS b WHERE b.topic_id = owner.id)
FROM owner
WHERE owner.id IS NOT NULL AND NOT EXISTS (SELECT FROM django_events_topic AS t WHERE t.id = owner.id)
ORDER BY owner.id
