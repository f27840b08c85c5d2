-- name: claim
-- Lease one partition of a consumer under a new token, if it is free.
--
-- A partition is free when no worker has it, or when the time of its lease is over: then that worker died or froze, and
-- the answer has its token. The token is random and fences: a worker with an older token can't settle.
-- The commit need not wait for the disk unless an attempt failed before: if a crash of the server undoes the lease,
-- it undoes everything that was settled under it too.
-- Where the log ends at the position, nothing is written. `min_position` is at most the position, unless that was
-- rewound: a literal, so that the planner opens no older segment. By another layout than the worker knows, nothing is
-- leased: a change of it writes the position's row, so that a claim that waited for the row's lock sees it. With another
-- revision than the worker knows, nothing is leased: who changes it has the topic's head locked, so what was logged since
-- isn't in a snapshot with the former one.
-- Parameters: position_id, layout, revision, token, lease (an interval), holder, async_commit (whether the commit may return before
-- it is on disk).
-- Literals: topic_id, min_position. Identifiers: log. Parts: redrive_due.
-- Answers with the position as it is, the token of the lease that was taken over if there was one, the row's address,
-- the time, whether a dead letter is to be handled again, up to which id the log can be read, and the barrier.
-- Relies on: the primary keys of django_events_position and of the log.
WITH free AS MATERIALIZED (
    SELECT
        p.id,
        p.token AS lost_token,
        redrive.due AS redrive_due,
        least(last.id, p.barrier - 1) AS last_id,
        CASE
            WHEN %(async_commit)s AND p.token IS NULL AND p.attempts = 0 THEN set_config('synchronous_commit', 'off', true)
        END AS commits
    FROM django_events_position AS p
    JOIN django_events_consumer AS c ON c.id = p.consumer_id
    LEFT JOIN (
        SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {min_position} ORDER BY e.id DESC LIMIT 1
    ) AS last ON true
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM django_events_deadletter AS d WHERE {redrive_due}) AS due
    ) AS redrive
    WHERE p.id = %(position_id)s
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
        AND p.stopped_at IS NULL
        AND (p.retry_at IS NULL OR p.retry_at <= clock_timestamp())
        AND (p.token IS NULL OR p.leased_until <= clock_timestamp())
        AND p.layout IS NOT DISTINCT FROM %(layout)s
        AND c.revision = %(revision)s
        AND (least(last.id, p.barrier - 1) > p.position OR redrive.due)
    FOR UPDATE OF p SKIP LOCKED
)
UPDATE django_events_position AS p
SET
    token = %(token)s,
    leased_until = clock_timestamp() + %(lease)s,
    holder = %(holder)s,
    served_at = clock_timestamp()
FROM free
WHERE p.id = free.id
RETURNING
    p.position, p.number, p.attempted, p.attempts, p.careful_until,
    free.lost_token, p.ctid::text, clock_timestamp(),
    free.redrive_due, free.last_id, p.barrier, free.commits


-- name: claim_and_read
-- Lease one partition of a consumer under a new token, and read its next events: `claim` and `light` of `next_events` in one
-- prepared statement, for a position in a known segment, of which nothing but new events is known to be there.
--
-- Where a lease is over, an attempt failed, a dead letter is to be handled again, or the position is not in the segment,
-- it does nothing: `claim` finds out. It sees one snapshot: a worker that has settled more since has moved the position
-- beyond what is seen here, so nothing is claimed, or up to where these events begin.
-- `ONLY log` has no rows. It is there because the rights and policies of the log hold for its segments too.
-- Parameters: position_id, layout, revision, token, lease (an interval), holder, reach (how many ids to look at).
-- Literals: topic_id, before (the id before the segment's first, or before the first that the filter is for). Identifiers: log, segment. Parts: redrive_due, light (the events after
-- claimed.position, up to claimed.upper).
-- Answers with what was claimed, up to which id the log can be read, the barrier, and up to which id it was read; then
-- each event. The time is a number of microseconds: it comes with each event, and a time takes long to decode.
-- Relies on: the primary keys of django_events_position and of the segment; for `light`, see there.
WITH free AS MATERIALIZED (
    SELECT p.id, least(last.id, p.barrier - 1) AS last_id, set_config('synchronous_commit', 'off', true) AS commits
    FROM django_events_position AS p
    JOIN django_events_consumer AS c ON c.id = p.consumer_id
    CROSS JOIN (
        SELECT e.id FROM {segment} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1
    ) AS last
    WHERE p.id = %(position_id)s::bigint
        AND p.token IS NULL
        AND p.attempts = 0
        AND p.careful_until <= p.position
        AND p.stopped_at IS NULL
        AND (p.retry_at IS NULL OR p.retry_at <= clock_timestamp())
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
        AND p.layout IS NOT DISTINCT FROM %(layout)s::int
        AND c.revision = %(revision)s::int
        AND p.position >= {before}
        AND p.position < least(last.id, p.barrier - 1)
        AND NOT EXISTS (SELECT FROM django_events_deadletter AS d WHERE {redrive_due})
        AND NOT EXISTS (SELECT FROM ONLY {log})
    FOR UPDATE OF p SKIP LOCKED
),
claimed AS (
    UPDATE django_events_position AS p
    SET
        token = %(token)s::bigint,
        leased_until = clock_timestamp() + %(lease)s::interval,
        holder = %(holder)s::text,
        served_at = clock_timestamp()
    FROM free
    WHERE p.id = free.id
    RETURNING
        p.partition, p.position, p.number, p.attempted, p.careful_until,
        p.ctid::text AS row_address, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
        free.last_id, p.barrier, least(free.last_id, p.position + %(reach)s::bigint) AS upper
)
SELECT
    claimed.position, claimed.number, claimed.attempted, claimed.careful_until, claimed.row_address, claimed.clock,
    claimed.last_id, claimed.barrier, claimed.upper, event.*
FROM claimed
LEFT JOIN LATERAL ({light}) AS event ON true


-- name: read_on
-- The next events of a partition in one segment of the log, as `claim_and_read` reads the first ones: a prepared statement.
--
-- Parameters: partition, position, upper. Identifiers: log. Parts: light.
-- Relies on: for `light`, see `claim_and_read`.
SELECT event.*
FROM (SELECT %(partition)s::int AS partition, %(position)s::bigint AS position, %(upper)s::bigint AS upper) AS claimed
CROSS JOIN LATERAL ({light}) AS event
WHERE NOT EXISTS (SELECT FROM ONLY {log})


-- name: hold
-- Take the advisory lock of a lease for what the server sends in this message, see `take_lock` of leases: while a
-- frozen worker takes no answer, its snapshot stays open.
--
-- Parameters: token.
SELECT pg_try_advisory_xact_lock(%(token)s::bigint)


-- name: in_claimed_partition
-- Part of a condition on an event `e` of a topic's own log: it is of the partition that `claim_and_read` leased.
--
-- Relies on: (partition, id) of the log.
e.partition = claimed.partition


-- name: overdue
-- The token of a position whose lease is over.
--
-- Parameters: position_id.
-- Relies on: the primary key of django_events_position.
SELECT token
FROM django_events_position
WHERE id = %(position_id)s AND token IS NOT NULL AND leased_until <= clock_timestamp()
