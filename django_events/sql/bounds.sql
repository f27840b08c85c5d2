-- The first and the last id of a topic's log, null where it is empty, and the id that it had reached then.
--
-- In one statement: read before the log, the floor would be too low where all segments are dropped in between.
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary keys of the log and of django_events_topichead.
SELECT
    {topic_id} AS topic_id,
    (SELECT min(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}) AS first_id,
    (SELECT max(e.id) FROM {log} AS e WHERE e.topic_id = {topic_id}) AS last_id,
    (SELECT h.id_floor FROM django_events_topichead AS h WHERE h.topic_id = {topic_id}) AS id_floor
