-- name: topic
-- A topic of the source by its name.
--
-- Parameters: topic.
-- Relies on: django_events_topic (name).
SELECT t.id FROM django_events_topic AS t WHERE t.name = %(topic)s


-- name: about
-- How a topic's log is now: its incarnation, its layouts, what retention and compaction have removed, and its last event.
--
-- The log is looked at before the head: read the other way round, the floor would be too low where segments are dropped
-- in between. The times of events prove later that they are the same: a server that lost its last events gives their ids to
-- others.
-- Answers with nothing if the topic is gone. Parameters: ids (of events). Literals: topic_id, known (an id that the log is
-- believed to have, so that the planner opens the newest segments only). Identifiers: log.
-- Relies on: the primary keys of the log, of django_events_topic and of django_events_topichead.
WITH log AS MATERIALIZED (
    SELECT
        (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {known} ORDER BY e.id DESC LIMIT 1) AS last_id,
        (
            SELECT jsonb_object_agg(e.id, concat_ws(' ', extract(epoch FROM e.logged_at), extract(epoch FROM e.published_at)))
            FROM {log} AS e
            WHERE e.topic_id = {topic_id} AND e.id = ANY(%(ids)s::bigint[])
        ) AS times
)
SELECT
    t.incarnation::text, t.partitions, t.layouts::text, h.id_floor, h.compacted_until,
    greatest(coalesce(log.last_id, 0), h.id_floor), coalesce(log.times, jsonb_build_object())::text
FROM log
JOIN django_events_topic AS t ON t.id = {topic_id}
JOIN django_events_topichead AS h ON h.topic_id = t.id


-- name: numbers
-- The number that each partition of a topic had reached at an id.
--
-- Where the log doesn't go back so far in a partition, the head knows what it had reached when retention removed it.
-- Parameters: id. Literals: topic_id, partitions. Identifiers: log.
-- Relies on: (partition, id) of the log, the primary key of django_events_topichead.
SELECT
    coalesce(
        (SELECT e.number FROM {log} AS e WHERE e.partition = part.partition AND e.id <= %(id)s ORDER BY e.id DESC LIMIT 1),
        (h.number_floors ->> part.partition)::bigint,
        0
    )
FROM generate_series(0, {partitions} - 1) AS part (partition)
JOIN django_events_topichead AS h ON h.topic_id = {topic_id}
ORDER BY part.partition


-- name: events
-- The events of a range that a filter lets through, with their JSON as text; null where that would be too large to read.
--
-- They end where they have so many bytes together as they travel, and each row says how many there are without that limit.
-- What is stored may be compressed, a hundredfold if it repeats itself. So many bytes as they are stored are unpacked at
-- most: finding out how large the others are would cost more than the batch. A body travels in hexadecimal digits.
-- Literals: topic_id, after, upper, most, bytes. Identifiers: log. Parts: value, condition.
-- Relies on: the primary key of the log.
SELECT
    e.id, e.type, e.key, e.value IS NOT NULL, e.value_text, e.body, e.metadata::text,
    concat_ws(' ', extract(epoch FROM e.logged_at), extract(epoch FROM e.published_at)), e.events
FROM (
    SELECT
        e.*,
        sum(coalesce(octet_length(e.value_text), 0) + coalesce(2 * octet_length(e.body), 0) + octet_length(e.metadata::text))
            OVER (ORDER BY e.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (
        SELECT e.*, {value} AS value_text
        FROM (
            SELECT e.*, count(*) OVER () AS events, sum(e.stored) OVER (ORDER BY e.id) - e.stored AS stored_before
            FROM (
                SELECT
                    e.*,
                    coalesce(pg_column_size(e.value), 0) + coalesce(pg_column_size(e.body), 0) + pg_column_size(e.metadata) AS stored
                FROM {log} AS e
                WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND {condition}
                ORDER BY e.id
                LIMIT {most}
            ) AS e
        ) AS e
        WHERE e.stored_before < {bytes}
        OFFSET 0
    ) AS e
) AS e
WHERE coalesce(e.bytes_before, 0) < {bytes}
ORDER BY e.id


-- name: copy
-- The events of a range as they are stored. They end where they have so many bytes together as they travel, as in `events`.
--
-- Literals: topic_id, after, upper, most, bytes. Identifiers: log.
-- Relies on: the primary key of the log.
COPY (
    SELECT {event_columns of e}
    FROM (
        SELECT
            e.*,
            sum(coalesce(octet_length(e.value::text), 0) + coalesce(octet_length(e.body), 0) + octet_length(e.metadata::text))
                OVER (ORDER BY e.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM (
            SELECT e.*, sum(e.stored) OVER (ORDER BY e.id) - e.stored AS stored_before
            FROM (
                SELECT
                    e.*,
                    coalesce(pg_column_size(e.value), 0) + coalesce(pg_column_size(e.body), 0) + pg_column_size(e.metadata) AS stored
                FROM {log} AS e
                WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
                ORDER BY e.id
                LIMIT {most}
            ) AS e
        ) AS e
        WHERE e.stored_before < {bytes}
    ) AS e
    WHERE coalesce(e.bytes_before, 0) < {bytes}
    ORDER BY e.id
) TO STDOUT (FORMAT binary)


-- name: listen
-- Be told when events come into logs of the source.
--
-- Identifiers: channel.
LISTEN {channel}
