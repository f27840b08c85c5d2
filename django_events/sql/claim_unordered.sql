-- Lease the next deliveries of a queue consumer under a new token: what waited for another attempt, then the next
-- in the order of their events.
--
-- `after` is a place behind which a worker goes on: before it are deliveries that others have in hand, and the dead
-- entries of those that were settled, which an old snapshot keeps. What it leaves out is found from the position on.
-- No index changes with a lease. Rows are found again by an array, because a join may be planned to read the whole
-- table, and between bounds, because without statistics an array may be planned as a mere filter.
-- The commit need not wait for the disk unless one of them failed before: a lease that a crash of the server takes
-- back was not used for anything that survived the crash.
-- Parameters: consumer_id, after, most, token, lease (an interval), holder, hurry (whether the commit may skip the
-- disk), since and until (of when they were received, or null). Answers with the event, the attempts that are counted, its key, and the last of those that waited for nothing.
-- Nothing is claimed while the consumer is paused, held or stopped, or without enter.sql before, or if something was
-- taken over under this token. While the consumer is not live, only what it is filled with is claimed: what came
-- when it was live may be behind that.
-- Relies on: the primary key of django_events_delivery, and (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH open AS MATERIALIZED (
    SELECT c.id, p.position, CASE WHEN c.live THEN 9223372036854775807 ELSE c.filled_until END AS upper
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    WHERE c.id = %(consumer_id)s
        AND NOT c.ordered
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
        AND p.stopped_at IS NULL
        AND current_setting('django_events.claims', true) = %(consumer_id)s::text
        AND NOT EXISTS (SELECT FROM django_events_deliverylease AS mine WHERE mine.token = %(token)s)
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
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT %(token)s, %(consumer_id)s, clock_timestamp() + %(lease)s, %(holder)s, jsonb_agg(picked.event_id)
    FROM picked
    HAVING count(*) > 0
),
claimed AS (
    UPDATE django_events_delivery AS d
    SET
        token = %(token)s,
        visible_at = NULL,
        delivered = d.delivered + 1,
        first_at = coalesce(d.first_at, clock_timestamp()),
        last_at = clock_timestamp()
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(ARRAY(SELECT picked.event_id FROM picked))
        AND d.event_id >= (SELECT min(picked.event_id) FROM picked)
        AND d.event_id <= (SELECT max(picked.event_id) FROM picked)
    RETURNING d.event_id, d.attempts, d.key
)
SELECT
    claimed.event_id, claimed.attempts, claimed.key, (SELECT max(fresh.event_id) FROM fresh),
    CASE WHEN %(hurry)s AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM claimed
ORDER BY claimed.event_id
