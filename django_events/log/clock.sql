-- name: next_tick
-- In how many seconds the next tick is due, or null if none is to come.
--
-- Parameters: names (of the clocks that this process declares).
-- Relies on: nothing: there are few clocks.
SELECT (extract(epoch FROM min(c.next_at)) - extract(epoch FROM statement_timestamp()))::float8
FROM django_events_clock AS c
WHERE c.name = ANY(%(names)s::text[]) AND c.paused_at IS NULL


-- name: take_due
-- Lock the clock whose tick has been due for the longest, and say what it is to publish and what time it is.
--
-- What another session has locked is left: it is publishing that tick.
-- Parameters: names (of the clocks that this process declares), ahead (how much earlier than due).
-- Relies on: nothing: there are few clocks.
SELECT
    c.id, c.name, c.topic_id, c.cron, c.tz, c.missed, c.overlap,
    extract(epoch FROM c.next_at)::float8,
    extract(epoch FROM statement_timestamp() + %(ahead)s::interval)::float8
FROM django_events_clock AS c
WHERE c.name = ANY(%(names)s::text[])
    AND c.paused_at IS NULL
    AND c.next_at <= statement_timestamp() + %(ahead)s::interval
ORDER BY c.next_at, c.id
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED


-- name: publish_ticks
-- Insert an event for each tick into the buffer; answers with the ticket of the last one, and when it was published.
--
-- Parameters: clock_id, ticks (times as text, in the clock's time zone, in their order).
-- Relies on: the primary key of django_events_clock.
WITH published AS (
    INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
    SELECT c.topic_id, c.type, c.key, c.value, jsonb_build_object('clock', c.name, 'tick', tick.at)
    FROM django_events_clock AS c
    CROSS JOIN unnest(%(ticks)s::text[]) WITH ORDINALITY AS tick (at, number)
    WHERE c.id = %(clock_id)s
    ORDER BY tick.number
    RETURNING id, published_at
)
SELECT p.id, p.published_at FROM published AS p ORDER BY p.id DESC LIMIT 1


-- name: move_on
-- Note the next tick of a clock, and the last one that was published if there is a new one.
--
-- Parameters: clock_id, next_at, last_at (or null).
-- Relies on: the primary key of django_events_clock.
UPDATE django_events_clock
SET
    next_at = coalesce(%(next_at)s::timestamptz, next_at + interval '50 years'),
    last_at = coalesce(%(last_at)s::timestamptz, last_at)
WHERE id = %(clock_id)s
RETURNING id


-- name: look_behind
-- Which consumer has not handled the event of a clock's last tick, and what it is at, in one snapshot; and the last id of the log.
--
-- In a later statement than `take_due`, so that it sees what the transaction before it knew of the clock. The event is in the
-- buffer, where its ticket finds it, or in the log, where it is behind the id that the log had reached when it was
-- published, and is known by the moment of that: a clock publishes one event at a time. An erased event says of no clock.
-- If it is in neither, retention or compaction has removed it, and nothing is open. A queue has a delivery of what it has not
-- settled; a dead letter is settled. A stream has passed what its position has, as in `fates`; whether an event after that is
-- for it, is what its present filter says.
-- Parameters: clock_id. Literals: topic_id. Identifiers: log. Parts: meets (whether the event `e` is for the consumer `c`; null: unknown).
-- Answers with the last id of the log, the event's id, null where it isn't in the log, and the consumer and its state, null where
-- nothing is open; one that people have to let go on comes first.
-- Relies on: the primary keys of the clock, of the buffer, of the log and of django_events_delivery,
-- django_events_consumer_name (name, topic), django_events_position (consumer_id, partition). It reads the log on from
-- that id: a few events, and where the event is gone, once, all that came since.
WITH last AS MATERIALIZED (
    SELECT k.name, k.last_ticket, k.last_published_at, k.last_behind FROM django_events_clock AS k WHERE k.id = %(clock_id)s
),
waiting AS MATERIALIZED (
    SELECT NULL::bigint AS id, NULL::int AS partition, b.type, b.key, b.value, b.metadata
    FROM last
    JOIN django_events_bufferedevent AS b ON b.topic_id = {topic_id} AND b.id = last.last_ticket
),
tick AS MATERIALIZED (
    SELECT w.id, w.partition, w.type, w.key, w.value, w.metadata FROM waiting AS w
    UNION ALL
    SELECT found.id, found.partition, found.type, found.key, found.value, found.metadata
    FROM last
    CROSS JOIN LATERAL (
        SELECT e.id, e.partition, e.type, e.key, e.value, e.metadata
        FROM {log} AS e
        WHERE e.topic_id = {topic_id}
            AND e.id > last.last_behind
            AND e.published_at = last.last_published_at
            AND (e.metadata ->> 'clock' = last.name OR e.metadata ->> 'erased' IS NOT NULL)
        ORDER BY e.id
        LIMIT 1
    ) AS found
    WHERE last.last_ticket IS NOT NULL AND NOT EXISTS (SELECT FROM waiting)
)
SELECT
    coalesce((SELECT l.id FROM {log} AS l WHERE l.topic_id = {topic_id} ORDER BY l.id DESC LIMIT 1), 0),
    e.id, holder.name, holder.state
FROM (VALUES (1)) AS one (row)
LEFT JOIN tick AS e ON true
LEFT JOIN LATERAL (
    SELECT
        c.name,
        CASE
            WHEN p.stopped THEN 'stopped'
            WHEN c.paused_at IS NOT NULL THEN 'paused'
            WHEN e.id IS NULL THEN 'unlogged'
            WHEN d.token IS NOT NULL THEN 'in hand'
            WHEN d.attempts > 0 OR p.retries THEN 'retrying'
            WHEN p.in_hand THEN 'in hand'
            ELSE 'pending'
        END AS state
    FROM django_events_consumer AS c
    LEFT JOIN django_events_delivery AS d ON d.consumer_id = c.id AND d.event_id = e.id
    CROSS JOIN LATERAL (
        SELECT
            coalesce(min(p.position) FILTER (WHERE p.partition IN (-1, e.partition)), min(p.position), 0) AS position,
            bool_or(p.stopped_at IS NOT NULL) FILTER (WHERE p.partition IN (-1, coalesce(e.partition, p.partition))) AS stopped,
            bool_or(p.attempted = e.id AND p.attempts > 0) AS retries,
            bool_or(p.token IS NOT NULL) FILTER (WHERE p.partition IN (-1, e.partition)) AS in_hand
        FROM django_events_position AS p
        WHERE p.consumer_id = c.id
    ) AS p
    WHERE c.topic_id = {topic_id}
        AND e.type IS NOT NULL
        AND CASE
            WHEN d.event_id IS NOT NULL THEN true
            WHEN e.id IS NULL THEN {meets} IS NOT false
            WHEN c.mode = 'queue' THEN NOT c.live AND e.id > c.filled_until AND {meets} IS NOT false
            ELSE e.id > p.position AND {meets} IS NOT false
        END
    ORDER BY p.stopped IS TRUE DESC, c.paused_at IS NOT NULL DESC, c.name
    LIMIT 1
) AS holder ON true


-- name: remember
-- Note of which event the last tick is, so that the next one can be left out while that is not handled.
--
-- Parameters: clock_id, ticket, published_at, behind (an id that the log had before it).
-- Relies on: the primary key of django_events_clock.
UPDATE django_events_clock
SET last_ticket = %(ticket)s, last_published_at = %(published_at)s, last_behind = %(behind)s
WHERE id = %(clock_id)s
RETURNING id


-- name: leave_out
-- Count a tick that is left out, and say which consumer had not handled the one before.
--
-- Parameters: clock_id, tick, consumer, state, event_id (of the one before, or null while it isn't in the log).
-- Relies on: the primary key of django_events_clock.
UPDATE django_events_clock
SET
    overlapped = overlapped + 1, overlapped_at = %(tick)s, overlapped_by = %(consumer)s, overlapped_as = %(state)s,
    last_behind = coalesce(%(event_id)s::bigint - 1, last_behind)
WHERE id = %(clock_id)s
RETURNING overlapped
