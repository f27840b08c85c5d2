-- name: last_word
-- When a worker of an inbox wrote down that it serves it, and what it then found wrong.
--
-- Parameters: inbox_id.
-- Relies on: the primary key of django_events_inbox.
SELECT served_at, error
FROM django_events_inbox
WHERE id = %(inbox_id)s


-- name: taken
-- Which of these dedup keys of a topic are taken.
--
-- Parameters: topic_id, keys (an array).
-- Relies on: the primary key of django_events_dedupkey.
SELECT key
FROM django_events_dedupkey
WHERE topic_id = %(topic_id)s AND key = ANY(%(keys)s::text[]) AND expires_at > clock_timestamp()


-- name: count
-- Count what an inbox takes in from a queue, which has no position; answers with a row if the inbox is still the same. The
-- row is locked until the end of the transaction, so this is the last statement of it.
--
-- Parameters: inbox_id, generation, taken, left_out, unreadable, lag (null if the source can't tell), is_well (whether nothing
-- holds it up any more).
-- Relies on: the primary key of django_events_inbox.
UPDATE django_events_inbox
SET
    taken = taken + %(taken)s,
    left_out = left_out + %(left_out)s,
    unreadable = unreadable + %(unreadable)s,
    unreadable_at = CASE WHEN %(unreadable)s > 0 THEN clock_timestamp() ELSE unreadable_at END,
    lag = %(lag)s::bigint,
    moved_at = clock_timestamp(),
    served_at = clock_timestamp(),
    failing_since = CASE WHEN %(is_well)s THEN NULL ELSE failing_since END,
    waiting_since = NULL,
    error = CASE WHEN %(is_well)s OR waiting_since IS NOT NULL THEN '' ELSE error END
WHERE id = %(inbox_id)s AND generation = %(generation)s
RETURNING id
