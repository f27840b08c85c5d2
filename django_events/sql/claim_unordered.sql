-- Lease the next deliveries of a queue consumer under a new token: what waited for another attempt, then the next
-- in the order of their events.
--
-- `after` is a place behind which a worker goes on: before it are deliveries that others have in hand, and the dead
-- entries of those that were settled, which an old snapshot keeps. What it leaves out is found from the position on.
-- The commit need not wait for the disk unless one of them failed before: a lease that a crash of the server takes
-- back was not used for anything that survived the crash.
-- Parameters: consumer_id, after, most, token, lease (an interval), holder, hurry (whether the commit may skip the
-- disk), since and until (of when they were received, or null). Answers with the event, the attempts that are
-- counted, its key, and the last of those that waited for nothing.
-- Parts: open, leasing.
-- Relies on: the primary key of django_events_delivery, and (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH open AS MATERIALIZED (
    {open}
        AND NOT c.ordered
),
due AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.visible_at <= statement_timestamp()
        AND d.token IS NULL
        AND d.event_id <= (SELECT open.upper FROM open)
        AND (%(since)s::timestamptz IS NULL OR d.received_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR d.received_at < %(until)s::timestamptz)
    ORDER BY d.visible_at
    LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
),
fresh AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.event_id > greatest(%(after)s, (SELECT open.position FROM open))
        AND d.event_id <= (SELECT open.upper FROM open)
        AND d.visible_at IS NULL
        AND d.token IS NULL
        AND (%(since)s::timestamptz IS NULL OR d.received_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR d.received_at < %(until)s::timestamptz)
    ORDER BY d.event_id
    LIMIT greatest(%(most)s - (SELECT count(*) FROM due), 0)
    FOR UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT event_id FROM due
    UNION ALL
    SELECT event_id FROM fresh
),
{leasing}
SELECT
    claimed.event_id, claimed.attempts, claimed.key, (SELECT max(fresh.event_id) FROM fresh),
    CASE WHEN %(hurry)s AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM claimed
ORDER BY claimed.event_id
