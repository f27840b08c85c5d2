-- name: find
-- An inbox: how far it is, as text, where it begins if it is nowhere yet, how often it was begun anew or paused, whether it
-- is paused, of which source its position is, the id and name of its topic, and what of this database it waits for, if
-- it does.
--
-- Parameters: name.
-- Relies on: the unique index of django_events_inbox (name).
SELECT
    i.id, i.position::text, i.start, i.generation, i.paused_at IS NOT NULL, i.source, i.topic_id, t.name,
    CASE WHEN i.waiting_since IS NULL THEN '' ELSE i.error END
FROM django_events_inbox AS i
JOIN django_events_topic AS t ON t.id = i.topic_id
WHERE i.name = %(name)s


-- name: advance
-- Move an inbox on, if it is where it is expected to be, was not begun anew or paused, and reads that source into that
-- topic; answers with a row if so. The row is locked until the end of the transaction, and another one that waits for it
-- compares again.
--
-- Parameters: inbox_id, generation, expected (null for one that has not begun), source, topic_id, position, taken, left_out, unreadable,
-- gone, lag.
-- Relies on: the primary key of django_events_inbox.
UPDATE django_events_inbox
SET
    position = %(position)s::jsonb,
    taken = taken + %(taken)s,
    left_out = left_out + %(left_out)s,
    unreadable = unreadable + %(unreadable)s,
    unreadable_at = CASE WHEN %(unreadable)s > 0 THEN clock_timestamp() ELSE unreadable_at END,
    gone = gone + %(gone)s,
    gone_at = CASE WHEN %(gone)s > 0 THEN clock_timestamp() ELSE gone_at END,
    lag = %(lag)s::bigint,
    moved_at = clock_timestamp(),
    served_at = clock_timestamp(),
    failing_since = NULL,
    waiting_since = NULL,
    error = ''
WHERE
    id = %(inbox_id)s
    AND paused_at IS NULL
    AND generation = %(generation)s
    AND source = %(source)s
    AND topic_id = %(topic_id)s
    AND position IS NOT DISTINCT FROM %(expected)s::jsonb
RETURNING id


-- name: served
-- Note that a worker reads the source of an inbox, and how many messages are behind its position, if that is where the
-- worker believes it to be; answers with a row if so.
--
-- Parameters: inbox_id, generation, expected (null for one that has not begun), lag (null if the source can't tell).
-- Relies on: the primary key of django_events_inbox.
UPDATE django_events_inbox
SET
    served_at = clock_timestamp(),
    lag = %(lag)s::bigint,
    failing_since = NULL,
    waiting_since = NULL,
    error = ''
WHERE
    id = %(inbox_id)s
    AND generation = %(generation)s
    AND position IS NOT DISTINCT FROM %(expected)s::jsonb
RETURNING id


-- name: fail
-- Note why an inbox can take nothing in, if it is where the worker believes it to be; answers with a row if so. What a
-- worker finds missing behind a place that another one has left long ago, may have been taken in by then.
--
-- Parameters: inbox_id, generation, expected (null for one that has not begun), error.
-- Relies on: the primary key of django_events_inbox.
UPDATE django_events_inbox
SET
    served_at = clock_timestamp(),
    failing_since = coalesce(failing_since, clock_timestamp()),
    waiting_since = NULL,
    error = %(error)s
WHERE
    id = %(inbox_id)s
    AND generation = %(generation)s
    AND position IS NOT DISTINCT FROM %(expected)s::jsonb
RETURNING id


-- name: wait
-- Note what of this database an inbox waits for, if it is where the worker believes it to be; answers with a row if so.
-- That is no failure, so none goes on.
--
-- Parameters: inbox_id, generation, expected (null for one that has not begun), reason.
-- Relies on: the primary key of django_events_inbox.
UPDATE django_events_inbox
SET
    served_at = clock_timestamp(),
    failing_since = NULL,
    waiting_since = coalesce(waiting_since, clock_timestamp()),
    error = %(reason)s
WHERE
    id = %(inbox_id)s
    AND generation = %(generation)s
    AND position IS NOT DISTINCT FROM %(expected)s::jsonb
RETURNING id
