-- name: make
-- Make a clock, if there is none of that name; answers with a row if it is new.
--
-- Parameters: name, topic_id, cron, tz, type, key, value, missed, overlap, next_at.
-- Relies on: the unique index of django_events_clock (name).
INSERT INTO django_events_clock (name, topic_id, cron, tz, type, key, value, missed, overlap, next_at)
VALUES (
    %(name)s, %(topic_id)s, %(cron)s, %(tz)s, %(type)s, %(key)s, %(value)s::jsonb, %(missed)s,
    %(overlap)s, %(next_at)s::timestamptz
)
ON CONFLICT (name) DO NOTHING
RETURNING id


-- name: adapt
-- Bring a clock in step with its declaration. On another topic it begins anew: no tick of it is open there.
--
-- Parameters: name, topic_id, cron, tz, type, key, value, missed, overlap, next_at (null to leave it).
-- Relies on: the unique index of django_events_clock (name).
UPDATE django_events_clock
SET
    topic_id = %(topic_id)s, cron = %(cron)s, tz = %(tz)s, type = %(type)s, key = %(key)s, value = %(value)s::jsonb,
    missed = %(missed)s, overlap = %(overlap)s, next_at = coalesce(%(next_at)s::timestamptz, next_at),
    last_ticket = CASE WHEN topic_id = %(topic_id)s AND %(overlap)s = 'skip' THEN last_ticket END
WHERE name = %(name)s
RETURNING id


-- name: has_value
-- Whether a clock publishes this value.
--
-- Parameters: clock_id, value.
-- Relies on: the primary key of django_events_clock.
SELECT c.value IS NOT DISTINCT FROM %(value)s::jsonb FROM django_events_clock AS c WHERE c.id = %(clock_id)s
