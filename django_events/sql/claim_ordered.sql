-- Lease the next deliveries of a queue consumer that handles each key in order, under a new token.
--
-- Of each key, only a run that begins with its oldest delivery, and none of which waits or is in somebody's hand. They
-- are looked for in a window of deliveries behind `after`, in the order of their events; those that waited for another
-- attempt are looked for everywhere, as many as are wanted. What has no key is free of all that. Where a worker got
-- hold of only a part of a run, because somebody else was at the rest in this moment, it takes what leads without a
-- gap. One that waited leads nothing: there may be a gap between it and the window.
-- The oldest delivery of a key is asked for as the first behind a place in the order of keys, which only the index of
-- keys has: by the key alone, the planner may walk over all deliveries to it, or hash all of them. Whether a key has
-- a head is asked by NOT IN, which is hashed: an IN may be planned as a loop within a loop.
-- Nothing before the position is looked at: there are the dead entries of settled deliveries, which an old snapshot
-- keeps.
-- Parameters: consumer_id, after, window (how many to look at), most, token, lease (an interval), holder, hurry
-- (whether the commit may skip the disk), since and until (of when they were received, or null).
-- Answers with the event, the attempts that are counted, its key, and the end of the window, or of
-- as many as are wanted, for others may be at them in this moment; where nothing is claimed, with
-- that end alone; and with none where there is nothing behind the window.
-- Parts: open, leasing.
-- Relies on: the primary key of django_events_delivery, (consumer_id, key, event_id) WHERE key IS NOT NULL, and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH open AS MATERIALIZED (
    {open}
        AND c.ordered
),
seen AS MATERIALIZED (
    SELECT
        d.event_id, d.key,
        d.token IS NULL
        AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp())
        AND (%(since)s::timestamptz IS NULL OR d.received_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR d.received_at < %(until)s::timestamptz) AS free
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.event_id > greatest(%(after)s, (SELECT open.position FROM open))
        AND d.event_id <= (SELECT open.upper FROM open)
    ORDER BY d.event_id
    LIMIT %(window)s
),
due AS MATERIALIZED (
    SELECT d.event_id, d.key
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.visible_at <= statement_timestamp()
        AND d.token IS NULL
        AND d.event_id <= (SELECT open.upper FROM open)
        AND (%(since)s::timestamptz IS NULL OR d.received_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR d.received_at < %(until)s::timestamptz)
    ORDER BY d.visible_at
    LIMIT %(most)s
),
lane AS MATERIALIZED (
    SELECT
        seen.event_id, seen.key,
        row_number() OVER run AS place,
        bool_and(seen.free) OVER run AS free,
        true AS leads
    FROM seen
    WINDOW run AS (PARTITION BY coalesce('k' || seen.key, seen.event_id::text) ORDER BY seen.event_id)
    UNION ALL
    SELECT due.event_id, due.key, 1, true, false FROM due WHERE due.event_id NOT IN (SELECT seen.event_id FROM seen)
),
head AS MATERIALIZED (
    SELECT lane.event_id, lane.key, lane.leads
    FROM lane
    LEFT JOIN LATERAL (
        SELECT d.event_id
        FROM django_events_delivery AS d
        WHERE d.consumer_id = %(consumer_id)s
            AND d.key IS NOT NULL
            AND (d.key, d.event_id) > (lane.key, (SELECT open.position FROM open))
        ORDER BY d.key, d.event_id
        LIMIT 1
    ) AS oldest ON true
    WHERE lane.place = 1 AND lane.free AND (lane.key IS NULL OR oldest.event_id = lane.event_id)
),
wanted AS MATERIALIZED (
    SELECT head.event_id, head.key, head.leads FROM head
    UNION ALL
    SELECT lane.event_id, lane.key, true
    FROM lane
    WHERE lane.place > 1 AND lane.free AND (lane.key NOT IN (SELECT head.key FROM head WHERE head.leads)) IS FALSE
    ORDER BY event_id
    LIMIT %(most)s
),
got AS MATERIALIZED (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(ARRAY(SELECT wanted.event_id FROM wanted))
        AND d.event_id >= (SELECT min(wanted.event_id) FROM wanted)
        AND d.event_id <= (SELECT max(wanted.event_id) FROM wanted)
        AND d.token IS NULL
        AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp())
    FOR UPDATE OF d SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT run.event_id
    FROM (
        SELECT mine.*, bool_and(mine.got) OVER (PARTITION BY mine.key ORDER BY mine.event_id) AS led
        FROM (
            SELECT wanted.event_id, wanted.key, wanted.event_id IN (SELECT got.event_id FROM got) AS got FROM wanted
        ) AS mine
    ) AS run
    WHERE run.got AND (run.led OR run.key IS NULL)
),
{leasing}
SELECT
    claimed.event_id, claimed.attempts, claimed.key, next.place,
    CASE WHEN %(hurry)s AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM (
    SELECT
        CASE
            WHEN (SELECT count(*) FROM wanted) >= %(most)s
                THEN (SELECT max(wanted.event_id) FROM wanted WHERE wanted.leads)
            WHEN count(*) = %(window)s THEN max(seen.event_id)
        END AS place
    FROM seen
) AS next
LEFT JOIN claimed ON true
ORDER BY claimed.event_id
