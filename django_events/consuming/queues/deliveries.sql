-- name: lock_position
-- Lock the position of a queue consumer, to move it up; no row if another session has it locked.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT p.position
FROM django_events_position AS p
WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1
FOR NO KEY UPDATE OF p SKIP LOCKED


-- name: move_up
-- Move the position of a queue consumer up to its oldest delivery, and add to its counts.
--
-- In a later statement than `lock_position`, so that it sees older deliveries that a rewind made under the same lock.
-- Nothing is written where nothing changes. While the consumer is not live, the position stays within the part of the log
-- of which deliveries were made.
-- Parameters: consumer_id, handled, failed, ignored, dead_lettered (how many more).
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery.
UPDATE django_events_position AS p
SET
    position = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    number = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    handled = p.handled + %(handled)s,
    failed = p.failed + %(failed)s,
    ignored = p.ignored + %(ignored)s,
    dead_lettered = p.dead_lettered + %(dead_lettered)s,
    served_at = clock_timestamp()
FROM django_events_consumer AS c
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id > (
            SELECT own.position FROM django_events_position AS own WHERE own.consumer_id = c.id AND own.partition = -1
        )
    ORDER BY d.event_id
    LIMIT 1
) AS oldest ON true
WHERE c.id = %(consumer_id)s
    AND p.consumer_id = c.id
    AND p.partition = -1
    AND (
        %(handled)s + %(failed)s + %(ignored)s > 0
        OR least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END) > p.position
    )
RETURNING p.position


-- name: add_counts
-- Add to the counts of a queue consumer when a worker ends; waits for a session that has the position locked.
--
-- Parameters: consumer_id, handled, failed, ignored, dead_lettered (how many more).
-- Relies on: django_events_position (consumer_id, partition).
UPDATE django_events_position
SET
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    ignored = ignored + %(ignored)s,
    dead_lettered = dead_lettered + %(dead_lettered)s,
    served_at = clock_timestamp()
WHERE consumer_id = %(consumer_id)s AND partition = -1
RETURNING id


-- name: add_counts_if_free
-- As `add_counts`, unless another session has the position locked: then there is no answer.
--
-- Parameters: consumer_id, handled, failed, ignored, dead_lettered (how many more).
-- Relies on: django_events_position (consumer_id, partition).
UPDATE django_events_position
SET
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    ignored = ignored + %(ignored)s,
    dead_lettered = dead_lettered + %(dead_lettered)s,
    served_at = clock_timestamp()
WHERE id = (
    SELECT p.id
    FROM django_events_position AS p
    WHERE p.consumer_id = %(consumer_id)s AND p.partition = -1
    FOR NO KEY UPDATE OF p SKIP LOCKED
)
RETURNING id


-- name: complete_until
-- The id up to which no delivery of a queue consumer is added any more.
--
-- Literals: topic_id, after. Identifiers: log. Parameters: consumer_id.
-- Relies on: the primary keys of the log and of django_events_consumer.
SELECT CASE WHEN c.live THEN coalesce(last.id, 0) ELSE c.filled_until END
FROM django_events_consumer AS c
LEFT JOIN (
    SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {after} ORDER BY e.id DESC LIMIT 1
) AS last ON true
WHERE c.id = %(consumer_id)s


-- name: overdue_leases
-- The leases of claimed deliveries whose time is over.
--
-- Parameters: consumer_id, ours (tokens to leave out).
-- Relies on: django_events_deliverylease (consumer_id).
SELECT token
FROM django_events_deliverylease
WHERE consumer_id = %(consumer_id)s AND leased_until <= clock_timestamp() AND token <> ALL(%(ours)s::bigint[])


-- name: enter
-- Enter, until the transaction ends, the claims of a queue consumer, unless `stand_still` keeps claims out.
--
-- In an earlier statement than the claim, so that the claim sees what was committed under `stand_still`. The claim is
-- planned without sorts where an index has the order: by the statistics of a table that was empty, a sort of all deliveries
-- of a consumer looks as cheap as the first entry of an index, and `claim_ordered` would do it for each key.
-- Parameters: consumer_id. Answers with it, or with an empty text where claims are kept out.
-- Relies on: nothing but the lock table.
SELECT
    set_config(
        'django_events.claims',
        CASE WHEN pg_try_advisory_xact_lock_shared(561, %(consumer_id)s) THEN %(consumer_id)s::text ELSE '' END,
        true
    ),
    set_config('enable_sort', 'off', true)


-- name: take_over
-- Take over, under a new token, the deliveries of a worker whose lease ran out, if there is such a lease.
--
-- Parameters: consumer_id, revision, token, lease (an interval), holder, ours (tokens of leases of this process, whose
-- handlers are still running). Nothing is taken over without `enter` before. Answers with the token that was lost, each
-- event, the attempts that are counted and its key; with one row and no event if none of the deliveries is left.
-- Parts: known.
-- Relies on: django_events_deliverylease (consumer_id), django_events_position (consumer_id, partition), the primary
-- key of django_events_delivery.
WITH lost AS MATERIALIZED (
    SELECT l.token, l.event_ids
    FROM django_events_deliverylease AS l
    JOIN django_events_consumer AS c ON c.id = l.consumer_id
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    WHERE l.consumer_id = %(consumer_id)s
        AND l.leased_until <= clock_timestamp()
        AND l.token <> ALL(%(ours)s::bigint[])
        AND current_setting('django_events.claims', true) = %(consumer_id)s::text
        AND p.stopped_at IS NULL
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
        AND {known}
    ORDER BY l.leased_until
    LIMIT 1
    FOR UPDATE OF l SKIP LOCKED
),
taken AS (
    UPDATE django_events_deliverylease AS l
    SET token = %(token)s, leased_until = clock_timestamp() + %(lease)s, holder = %(holder)s
    FROM lost
    WHERE l.token = lost.token
),
deliveries AS (
    UPDATE django_events_delivery AS d
    SET token = %(token)s, delivered = d.delivered + 1, last_at = clock_timestamp()
    FROM lost
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(
            ARRAY(SELECT event.id::bigint FROM lost, jsonb_array_elements_text(lost.event_ids) AS event (id))
        )
        AND d.token = lost.token
    RETURNING d.event_id, d.attempts, d.key
)
SELECT lost.token, deliveries.event_id, deliveries.attempts, deliveries.key
FROM lost
LEFT JOIN deliveries ON true
ORDER BY deliveries.event_id


-- name: claim_ordered
-- Lease the next deliveries of a queue consumer that handles each key in order, under a new token.
--
-- Of each key, only a run of deliveries is claimed that begins with the oldest one of the key, and none of which waits or is
-- claimed. Runs are looked for in a window behind `after`, in the order of events. Deliveries that waited for another
-- attempt are looked for everywhere, up to `most`. Deliveries without a key are claimed in any case. Where this worker locks
-- only a part of a run, because another session has locked the rest in this moment, it claims the run up to the first gap.
-- A delivery that waited leads no run: there may be a gap between it and the window.
-- The oldest delivery of a key is asked for as the first behind an entry in the order of keys, which only the index of
-- keys has: by the key alone, the planner may walk over all deliveries to it, or hash all of them. `enter` keeps it from
-- sorting all of them. Whether the first of a key is claimable is asked by NOT IN, which is hashed: an IN may be planned as
-- a loop within a loop.
-- Nothing before the position is looked at: there are the dead entries of settled deliveries, which an old snapshot
-- keeps.
-- Parameters: consumer_id, revision, after, window (how many to look at), most, token, lease (an interval), holder, async_commit
-- (whether the commit may return before it is on disk), since and until (of when they were received, or null).
-- Answers with the event, the attempts that are counted, its key, and where to look next: behind the window, or behind the
-- `most` that could be claimed, for other sessions may have locked some of them in this moment. Where nothing is claimed,
-- one row has that id alone; no id where there is nothing behind the window.
-- Parts: open, known, waited, received, leasing.
-- Relies on: the primary key of django_events_delivery, (consumer_id, key, event_id) WHERE key IS NOT NULL, and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH open AS MATERIALIZED (
    {open}
        AND c.ordered
        AND {known}
),
seen AS MATERIALIZED (
    SELECT
        d.event_id, d.key,
        d.token IS NULL
        AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp())
        AND {received} AS free
    FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.event_id > greatest(%(after)s, (SELECT open.position FROM open))
        AND d.event_id <= (SELECT open.upper FROM open)
    ORDER BY d.event_id
    LIMIT %(window)s
),
due AS MATERIALIZED (
    SELECT d.event_id, d.key
    {waited}
),
runs AS MATERIALIZED (
    SELECT
        seen.event_id, seen.key,
        row_number() OVER run AS rank,
        bool_and(seen.free) OVER run AS free,
        true AS leads
    FROM seen
    WINDOW run AS (PARTITION BY coalesce('k' || seen.key, seen.event_id::text) ORDER BY seen.event_id)
    UNION ALL
    SELECT due.event_id, due.key, 1, true, false FROM due WHERE due.event_id NOT IN (SELECT seen.event_id FROM seen)
),
first_of_key AS MATERIALIZED (
    SELECT runs.event_id, runs.key, runs.leads
    FROM runs
    LEFT JOIN LATERAL (
        SELECT d.event_id
        FROM django_events_delivery AS d
        WHERE d.consumer_id = %(consumer_id)s
            AND d.key IS NOT NULL
            AND (d.key, d.event_id) > (runs.key, (SELECT open.position FROM open))
        ORDER BY d.key, d.event_id
        LIMIT 1
    ) AS oldest ON true
    WHERE runs.rank = 1 AND runs.free AND (runs.key IS NULL OR oldest.event_id = runs.event_id)
),
wanted AS MATERIALIZED (
    SELECT first_of_key.event_id, first_of_key.key, first_of_key.leads FROM first_of_key
    UNION ALL
    SELECT runs.event_id, runs.key, true
    FROM runs
    WHERE runs.rank > 1 AND runs.free AND (runs.key NOT IN (SELECT first_of_key.key FROM first_of_key WHERE first_of_key.leads)) IS FALSE
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
    claimed.event_id, claimed.attempts, claimed.key, next.after,
    CASE WHEN %(async_commit)s AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM (
    SELECT
        CASE
            WHEN (SELECT count(*) FROM wanted) >= %(most)s
                THEN (SELECT max(wanted.event_id) FROM wanted WHERE wanted.leads)
            WHEN count(*) = %(window)s THEN max(seen.event_id)
        END AS after
    FROM seen
) AS next
LEFT JOIN claimed ON true
ORDER BY claimed.event_id


-- name: open_to_claims
-- Part of a claim of deliveries: the queue consumer, its position, and the last id that may be claimed.
--
-- No row where nothing may be claimed: while the consumer is paused, held or stopped, without `enter` before, or if
-- deliveries were taken over under this token. While it is not live, only deliveries up to filled_until may be claimed:
-- those behind it are from an earlier time when it was live, and events in between have no deliveries yet.
-- Parameters: consumer_id, token.
-- Relies on: the primary keys of django_events_consumer and django_events_deliverylease, django_events_position
-- (consumer_id, partition).
SELECT c.id, p.position, CASE WHEN c.live THEN 9223372036854775807 ELSE c.filled_until END AS upper
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = %(consumer_id)s
    AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
    AND p.stopped_at IS NULL
    AND current_setting('django_events.claims', true) = %(consumer_id)s::text
    AND NOT EXISTS (SELECT FROM django_events_deliverylease AS mine WHERE mine.token = %(token)s)


-- name: known_revision
-- Part of a claim of deliveries: a consumer `c` has the revision that the worker knows.
--
-- Who changes it has the topic's head locked, and the consumer's row: a snapshot with the former revision has no delivery of
-- an event that was judged by the new filter. Programs that claim by a function have no declaration, and don't ask.
-- Parameters: revision.
-- Relies on: nothing, it is a condition.
c.revision = %(revision)s


-- name: waited
-- Part of a claim of deliveries: those that waited for their next attempt, or for their delay, and are due.
--
-- Parameters: most, since, until. Parts: received.
-- Relies on: (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
FROM django_events_delivery AS d
    WHERE d.consumer_id = (SELECT open.id FROM open)
        AND d.visible_at <= statement_timestamp()
        AND d.token IS NULL
        AND d.event_id <= (SELECT open.upper FROM open)
        AND {received}
    ORDER BY d.visible_at
    LIMIT %(most)s


-- name: received_in_window
-- Part of a claim of deliveries: a delivery `d` was received in the window that the caller of claim() asks for.
--
-- Parameters: since, until (or null).
-- Relies on: nothing, it is a filter.
(%(since)s::timestamptz IS NULL OR d.received_at >= %(since)s::timestamptz)
        AND (%(until)s::timestamptz IS NULL OR d.received_at < %(until)s::timestamptz)


-- name: lease_picked
-- Part of a claim of deliveries: a lease of those that were picked, and the token in each of them.
--
-- No index changes with a lease. Rows are found again by an array, because a join may be planned as a scan of the whole
-- table, and between bounds, because without statistics an array may be planned as a mere filter.
-- Parameters: consumer_id, token, lease (an interval), holder.
-- Relies on: the primary key of django_events_delivery.
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


-- name: claim_unordered
-- Lease the next deliveries of a queue consumer under a new token: those that waited for another attempt, then the next
-- in the order of their events.
--
-- `after` is an id behind which a worker goes on: up to it are deliveries that other workers have claimed, and the dead
-- entries of settled ones, which an old snapshot keeps. Free deliveries before it are found by a look from the position on.
-- The commit need not wait for the disk unless an attempt failed before: if a crash of the server undoes the lease, it
-- undoes everything that was settled under it too.
-- Parameters: consumer_id, revision, after, most, token, lease (an interval), holder, async_commit (whether the commit may return
-- before it is on disk), since and until (of when they were received, or null). Answers with the event, the attempts that
-- are counted, its key, and the last id of those that waited for nothing.
-- Parts: open, known, waited, received, leasing.
-- Relies on: the primary key of django_events_delivery, and (consumer_id, visible_at) WHERE visible_at IS NOT NULL.
WITH open AS MATERIALIZED (
    {open}
        AND NOT c.ordered
        AND {known}
),
due AS MATERIALIZED (
    SELECT d.event_id
    {waited}
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
        AND {received}
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
    CASE WHEN %(async_commit)s AND max(claimed.attempts) OVER () = 0 THEN set_config('synchronous_commit', 'off', true) END
FROM claimed
ORDER BY claimed.event_id
