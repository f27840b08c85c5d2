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
    c.id, c.name, c.cron, c.tz, c.missed, c.overlap, c.topic_id, c.ticket, c.behind,
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
-- Insert an event for each tick into the buffer; answers with the last one's ticket.
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
    RETURNING id
)
SELECT max(published.id) FROM published


-- name: not_handled_by
-- A consumer that has not handled the last tick of a clock yet; an empty name where the event is not in the log.
--
-- The event is told from others by the clock's name in its metadata. A stream has handled it if its position in that
-- partition is there; a partition without a position was left behind by all of the consumer. A queue has if there is no
-- delivery of it. What all have passed is not looked at.
-- Parameters: name (of the clock), ticket (of the event), behind (an id that the log had before it). Literals: topic_id.
-- Identifiers: log. Answers with nothing if all have handled it, or it is gone.
-- Relies on: the primary keys of the buffer, of the log and of django_events_delivery, django_events_consumer (topic),
-- django_events_position (consumer_id, partition).
WITH reading AS MATERIALIZED (
    SELECT
        c.id, c.name, c.mode, c.live, c.filled_until,
        (SELECT min(p.position) FROM django_events_position AS p WHERE p.consumer_id = c.id) AS lowest
    FROM django_events_consumer AS c
    WHERE c.topic_id = {topic_id} AND c.mode <> 'spark'
),
event AS MATERIALIZED (
    SELECT e.id, e.partition
    FROM {log} AS e
    WHERE e.topic_id = {topic_id}
        AND e.id > greatest(%(behind)s::bigint, (SELECT min(reading.lowest) FROM reading))
        AND EXISTS (SELECT FROM reading)
        AND e.metadata ->> 'clock' = %(name)s
)
SELECT ''
FROM django_events_bufferedevent AS b
WHERE b.topic_id = {topic_id} AND b.id = %(ticket)s
UNION ALL
(
    SELECT r.name
    FROM event
    JOIN reading AS r ON
        CASE
            WHEN r.mode = 'queue' THEN
                (NOT r.live AND r.filled_until < event.id)
                OR EXISTS (SELECT FROM django_events_delivery AS d WHERE d.consumer_id = r.id AND d.event_id = event.id)
            ELSE
                event.id > coalesce(
                    (
                        SELECT min(p.position)
                        FROM django_events_position AS p
                        WHERE p.consumer_id = r.id AND p.partition IN (-1, event.partition)
                    ),
                    r.lowest
                )
        END
    ORDER BY r.name
    LIMIT 1
)


-- name: note_skipped
-- Count a tick that is left out, because the one before is not handled, and move on to the next one.
--
-- Parameters: clock_id, next_at (or null), skipped_for (a consumer, or empty).
-- Relies on: the primary key of django_events_clock.
UPDATE django_events_clock
SET
    next_at = coalesce(%(next_at)s::timestamptz, next_at + interval '50 years'),
    skipped = skipped + 1, skipped_at = statement_timestamp(), skipped_for = %(skipped_for)s
WHERE id = %(clock_id)s
RETURNING id


-- name: move_on
-- Note the next tick of a clock, and the last one that was published if there is a new one.
--
-- Parameters: clock_id, next_at, last_at (or null), ticket and behind (where the last one is in the buffer, and behind
-- which id of the log it will come; or null).
-- Relies on: the primary key of django_events_clock.
UPDATE django_events_clock
SET
    next_at = coalesce(%(next_at)s::timestamptz, next_at + interval '50 years'),
    last_at = coalesce(%(last_at)s::timestamptz, last_at),
    ticket = coalesce(%(ticket)s::bigint, ticket),
    behind = coalesce(%(behind)s::bigint, behind)
WHERE id = %(clock_id)s
RETURNING id
