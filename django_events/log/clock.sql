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
    c.id, c.name, c.cron, c.tz, c.missed,
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
-- Insert an event for each tick into the buffer; answers with how many.
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
    RETURNING 1
)
SELECT count(*) FROM published


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
