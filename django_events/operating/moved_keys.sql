-- name: left_in_buffer
-- The newest ticket of a topic in the buffer, up to one, or null; and the last id of its log: in one snapshot, in which each
-- event is in the one or in the other.
--
-- Parameters: ticket. Literals: topic_id. Identifiers: log.
-- Relies on: the primary keys of django_events_bufferedevent, django_events_topichead and of the log.
SELECT
    (SELECT max(b.id) FROM django_events_bufferedevent AS b WHERE b.topic_id = {topic_id} AND b.id <= %(ticket)s::bigint),
    coalesce(
        (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1),
        (SELECT h.id_floor FROM django_events_topichead AS h WHERE h.topic_id = {topic_id}),
        0
    )


-- name: unsettled_until
-- A queue consumer that has an event to handle up to an id, or may get one.
--
-- Parameters: consumer_id, last_id.
-- Relies on: the primary keys of django_events_consumer and django_events_delivery, django_events_position (consumer_id, partition).
SELECT c.id
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = %(consumer_id)s
    AND (
        (NOT c.live AND c.filled_until < %(last_id)s::bigint)
        OR EXISTS (
            SELECT
            FROM django_events_delivery AS d
            WHERE d.consumer_id = c.id AND d.event_id > p.position AND d.event_id <= %(last_id)s::bigint
        )
    )
