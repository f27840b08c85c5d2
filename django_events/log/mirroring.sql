-- name: end
-- Where the log of a mirror ends, and into how many partitions it is divided there. Behind the statement that locks.
--
-- What was compacted at the source may be all that there was behind the last event.
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary keys of the log, of django_events_topic and of django_events_topichead.
SELECT
    greatest(
        (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1),
        h.id_floor, h.compacted_until
    ),
    t.partitions
FROM django_events_topichead AS h
JOIN django_events_topic AS t ON t.id = h.topic_id
WHERE h.topic_id = {topic_id}


-- name: waits
-- Whether something waits to be published to a topic, by itself or at its time.
--
-- Parameters: topic_id.
-- Relies on: the primary key of the buffer (topic_id, id), django_events_scheduled_topic or few scheduled events.
SELECT
    EXISTS (SELECT FROM django_events_bufferedevent AS b WHERE b.topic_id = %(topic_id)s)
    OR EXISTS (SELECT FROM django_events_scheduledevent AS s WHERE s.topic_id = %(topic_id)s)


-- name: begin
-- Let an empty log begin behind an id, with the numbers that partitions had there.
--
-- Parameters: topic_id, id, numbers (a list as JSON).
-- Relies on: the primary key of django_events_topichead.
UPDATE django_events_topichead
SET id_floor = %(id)s, number_floors = %(numbers)s::jsonb
WHERE topic_id = %(topic_id)s
RETURNING topic_id


-- name: copy
-- Put events of another log into the log, as they are stored there.
COPY django_events_event (topic_id, {event_columns}) FROM STDIN (FORMAT binary)


-- name: note_absent
-- Write down up to which id events may be missing, and how many there are up to it.
--
-- Where it isn't known how many there were before, as after an interrupted compaction, it stays unknown.
-- Parameters: topic_id, after (the id where the log ended), until, came (how many events came since, up to `until`).
-- Relies on: the primary key of django_events_topichead.
UPDATE django_events_topichead
SET
    compacted_until = %(until)s,
    kept_events = CASE
        WHEN kept_events < 0 THEN kept_events
        WHEN compacted_until > id_floor THEN kept_events + %(after)s - compacted_until + %(came)s
        ELSE %(after)s - id_floor + %(came)s
    END
WHERE topic_id = %(topic_id)s AND compacted_until < %(until)s
RETURNING topic_id


-- name: tell
-- Tell all who listen to the channel of the log.
--
-- Parameters: channel, payload.
SELECT pg_notify(%(channel)s, %(payload)s)
