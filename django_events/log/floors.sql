-- name: floors
-- What the head of a topic says that the log can't tell any more: the last id that was removed, the numbers by then, and
-- up to which id events may have been removed in between; and whether the log is compacted here, or only at its source.
--
-- Parameters: topic_id. Answers with nothing if there is no head.
-- Relies on: the primary key of django_events_topichead.
SELECT h.id_floor, ARRAY(SELECT jsonb_array_elements_text(h.number_floors)::bigint), h.compacted_until, t.compact
FROM django_events_topichead AS h
JOIN django_events_topic AS t ON t.id = h.topic_id
WHERE h.topic_id = %(topic_id)s
