-- name: named
-- The topics of these names, each with those of these consumers that read it; or all topics that the consumers read.
--
-- Parameters: topics (names, or null for those that the consumers read), consumers (names).
-- Answers with the topic's id and name, the id and the name of the consumer, null where none of them reads it, and where
-- this session looks for tables; and what the topic is a mirror of.
-- Relies on: django_events_topic (name), django_events_consumer (name, topic).
SELECT t.id, t.name, c.id, c.name, current_setting('search_path'), t.mirror_of
FROM django_events_topic AS t
LEFT JOIN django_events_consumer AS c ON c.topic_id = t.id AND c.name = ANY(%(consumers)s::text[])
WHERE CASE WHEN %(topics)s::text[] IS NULL THEN c.id IS NOT NULL ELSE t.name = ANY(%(topics)s::text[]) END
ORDER BY t.id, c.name


-- name: last_ticket
-- The last ticket that was given: no event that was committed before has a higher one. Null where the role may not know.
--
-- To such a role, newer servers answer with null by themselves, as for a sequence that has given nothing yet.
-- Relies on: nothing but the sequence of the buffer.
SELECT
    CASE
        WHEN has_sequence_privilege('django_events_bufferedevent_id_seq', 'USAGE, SELECT')
            THEN coalesce(pg_sequence_last_value('django_events_bufferedevent_id_seq'::regclass), 0)
    END


-- name: arrived
-- Whether events have left the buffer, and where they are in the log then: in one snapshot, in which they are in one of
-- the two. An event that the log has by then is at or below its last id, because ids follow commits.
--
-- An event is found again by the moment at which it was published, among the newest of the log, where it is certain to be
-- among those: all are looked at that came since it was seen in the buffer, or that the log has, or that were logged since
-- it was published. Otherwise another one of its moment, whose transaction was open for long, could be taken for it.
-- Parameters: lower and upper (tickets), since and until (seconds of the epoch between which it was published, or null),
-- behind (an id that the log had when it was in the buffer, or 0).
-- Literals: topic_id, newest (how many events to look at), slack (seconds: a transfer's statement may have begun so long
-- before it saw an event). Identifiers: log.
-- Answers with the lowest of these tickets that is still in the buffer, or null; with the last id of the log; and with the id and
-- the partition of each event of that moment.
-- Relies on: the primary keys of the buffer, of django_events_topichead and of the log; logged_at never going down.
SELECT waiting.id, coalesce(last.id, h.id_floor), found.id, found.partition
FROM django_events_topichead AS h
LEFT JOIN LATERAL (
    SELECT b.id
    FROM django_events_bufferedevent AS b
    WHERE b.topic_id = {topic_id} AND b.id >= %(lower)s::bigint AND b.id <= %(upper)s::bigint
    ORDER BY b.id
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT looked.id, looked.partition
    FROM (
        SELECT newest.*, count(*) OVER () AS events, min(newest.logged_at) OVER () AS first_logged
        FROM (
            SELECT e.id, e.partition, e.published_at, e.logged_at
            FROM {log} AS e
            WHERE e.topic_id = {topic_id} AND e.id > %(behind)s::bigint
                AND waiting.id IS NULL AND %(since)s::float8 IS NOT NULL
            ORDER BY e.id DESC
            LIMIT {newest}
        ) AS newest
    ) AS looked
    WHERE looked.published_at >= to_timestamp(%(since)s::float8) AND looked.published_at <= to_timestamp(%(until)s::float8)
        AND (looked.events < {newest} OR looked.first_logged < to_timestamp(%(since)s::float8) - make_interval(secs => {slack}))
) AS found ON true
WHERE h.topic_id = {topic_id}
ORDER BY found.id


-- name: passed
-- How far consumers are with events, or, where the partition is null, with everything up to an id.
--
-- A stream has passed an event if its position in that partition is there; a partition without a position was left behind
-- by all of the consumer. A queue has passed what was made a delivery and has none any more: nothing before its position has.
-- Parameters: arrays of one length: consumer_ids, event_ids, partitions (null: all up to the id).
-- Answers in their order with the consumer's mode, null where it is gone; whether it has passed that, and otherwise how far it is: the
-- position, whether it is paused, whether it is stopped, and the event that it tries again; the lowest id that is left of a queue;
-- and whether the event is a dead letter, and waits to be handled again.
-- Relies on: the primary keys of django_events_consumer and of django_events_delivery, django_events_position (consumer_id,
-- partition), django_events_deadletter (consumer_id, event_id).
SELECT
    c.mode,
    CASE
        WHEN c.mode <> 'queue' THEN coalesce(p.own, p.lowest) >= w.event_id
        ELSE (c.live OR c.filled_until >= w.event_id) AND left_over.event_id IS NULL
    END,
    coalesce(p.own, p.lowest),
    c.paused_at IS NOT NULL,
    p.stopped,
    p.attempted,
    left_over.event_id,
    d.id IS NOT NULL,
    d.redrive_at IS NOT NULL
FROM unnest(%(consumer_ids)s::int[], %(event_ids)s::bigint[], %(partitions)s::int[]) WITH ORDINALITY
    AS w (consumer_id, event_id, partition, index)
LEFT JOIN django_events_consumer AS c ON c.id = w.consumer_id
LEFT JOIN LATERAL (
    SELECT
        min(p.position) FILTER (WHERE p.partition IN (-1, w.partition)) AS own,
        min(p.position) AS lowest,
        coalesce(bool_or(p.stopped_at IS NOT NULL) FILTER (WHERE p.partition IN (-1, coalesce(w.partition, p.partition))), false) AS stopped,
        min(p.attempted) FILTER (WHERE p.attempts > 0 AND p.partition IN (-1, coalesce(w.partition, p.partition))) AS attempted
    FROM django_events_position AS p
    WHERE p.consumer_id = c.id
) AS p ON true
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id >= CASE WHEN w.partition IS NULL THEN p.lowest + 1 ELSE w.event_id END
        AND d.event_id <= w.event_id
    ORDER BY d.event_id
    LIMIT 1
) AS left_over ON c.mode = 'queue'
LEFT JOIN django_events_deadletter AS d
    ON d.consumer_id = c.id AND d.event_id = w.event_id AND w.partition IS NOT NULL
ORDER BY w.index


-- name: unread
-- Whether a stream has events up to an id that it has not passed, whatever the positions of partitions without events are.
--
-- A partition without a position has nothing left before the lowest position of the others.
-- Parameters: consumer_id. Literals: topic_id, bound. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), the primary key of the log and its (partition, id).
WITH positions AS MATERIALIZED (
    SELECT p.partition, p.position FROM django_events_position AS p WHERE p.consumer_id = %(consumer_id)s::int
),
partitions AS (
    SELECT part.partition, coalesce(positions.position, (SELECT min(position) FROM positions)) AS position
    FROM django_events_topic AS t
    CROSS JOIN LATERAL generate_series(
        0,
        greatest(
            t.partitions, (SELECT max((layout ->> 1)::int) FROM jsonb_array_elements(t.layouts) AS layout)
        ) - 1
    ) AS part (partition)
    LEFT JOIN positions ON positions.partition = part.partition
    WHERE t.id = {topic_id} AND NOT EXISTS (SELECT FROM positions WHERE positions.partition = -1)
)
SELECT
    EXISTS (
        SELECT
        FROM positions
        CROSS JOIN LATERAL (
            SELECT e.id
            FROM {log} AS e
            WHERE e.topic_id = {topic_id} AND e.id > positions.position AND e.id <= {bound}
            ORDER BY e.id
            LIMIT 1
        ) AS next
        WHERE positions.partition = -1
    )
    OR EXISTS (
        SELECT
        FROM partitions
        CROSS JOIN LATERAL (
            SELECT e.id
            FROM {log} AS e
            WHERE e.partition = partitions.partition AND e.id > partitions.position AND e.id <= {bound}
            ORDER BY e.id
            LIMIT 1
        ) AS next
    )


-- name: gave_up
-- The first event of a moment, up to an id, that a consumer gave up on, and whether it waits to be handled again.
--
-- For an event that was not found by its moment: it may be this one. Asked once, when everything up to the id is passed.
-- Parameters: consumer_id, event_id, since and until (seconds of the epoch).
-- Relies on: django_events_deadletter (consumer_id, event_id).
SELECT d.event_id, d.redrive_at IS NOT NULL
FROM django_events_deadletter AS d
WHERE d.consumer_id = %(consumer_id)s::int AND d.event_id <= %(event_id)s::bigint
    AND d.published_at >= to_timestamp(%(since)s::float8) AND d.published_at <= to_timestamp(%(until)s::float8)
ORDER BY d.redrive_at IS NOT NULL, d.event_id
LIMIT 1
