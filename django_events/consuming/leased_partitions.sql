-- name: read
-- The next events of a consumer behind a position, in order, up to an id that is settled: a part of `bounded`.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: after, upper, most. Identifiers: log. Parts: events (which events `e` are in the partition), match.
-- Relies on: (partition, id) or the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE {events} AND e.id > {after} AND e.id <= {upper} AND {match}
ORDER BY e.id
LIMIT {most}


-- name: count_attempt
-- Count an attempt before it starts, so that it counts also if the handler ends its process.
--
-- The commit waits for the disk.
-- Parameters: position_id, token, event_id, careful_until.
-- Relies on: the primary key of django_events_position.
UPDATE django_events_position
SET
    attempts = CASE WHEN attempted = %(event_id)s THEN attempts + 1 ELSE 1 END,
    attempted = %(event_id)s,
    careful_until = greatest(careful_until, %(careful_until)s)
WHERE id = %(position_id)s AND token = %(token)s
RETURNING attempts, ctid::text,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END


-- name: settle
-- Write down how far a consumer is in a partition, if the lease is still the settler's.
--
-- Where the row was when it was last written is tried first: under an old snapshot, a look by the key walks
-- over every version since. No answer means that the row is elsewhere, or that the lease was lost.
-- Parameters: position_id, token, place (a ctid, or null to look by the key), position, number,
-- handled, failed, ignored, dead_lettered (how many more), attempted, attempts, pause (an interval
-- until the next attempt, or null), careful_until, stopped, error (null to leave it),
-- release, hold (whether to take the lock of `hold`, by which a frozen settler is found).
-- Answers with where the row is now, whether the transaction is still the one that began with `hold`, and whether that
-- lock was had, null if it was not asked for. Without it nothing must be committed: somebody takes over now.
-- Relies on: the row's place, or the primary key of django_events_position.
UPDATE django_events_position
SET
    position = %(position)s,
    number = %(number)s,
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    ignored = ignored + %(ignored)s,
    dead_lettered = dead_lettered + %(dead_lettered)s,
    attempted = %(attempted)s,
    attempts = %(attempts)s,
    retry_at = clock_timestamp() + %(pause)s::interval,
    careful_until = %(careful_until)s,
    stopped_at = CASE WHEN %(stopped)s THEN clock_timestamp() END,
    error = coalesce(%(error)s, error),
    token = CASE WHEN %(release)s THEN NULL ELSE token END,
    leased_until = CASE WHEN %(release)s THEN NULL ELSE leased_until END,
    holder = CASE WHEN %(release)s THEN '' ELSE holder END
WHERE ctid = coalesce(%(place)s::tid, ctid) AND id = %(position_id)s AND token = %(token)s
RETURNING
    ctid::text,
    current_setting('django_events.token', true) = %(token)s::text,
    CASE WHEN %(hold)s THEN pg_try_advisory_xact_lock(%(token)s) END


-- name: claim
-- Lease one partition of a consumer under a new token, if it is free.
--
-- A lease is free when its holder settled, or when its time is over: then the holder died or froze,
-- and the answer has its token. The token is random and fences: whoever holds an older one settles nothing.
-- The commit need not wait for the disk unless an attempt failed before: a lease that a crash of the
-- server takes back was not used for anything that survived the crash.
-- Where the log has nothing behind the position, nothing is written. The floor is no more than the position, unless
-- that was rewound: a literal, so that the planner opens no older segment.
-- Parameters: position_id, token, lease (an interval), holder, async_commit (whether the commit may skip the disk).
-- Literals: topic_id, floor. Identifiers: log. Parts: redrive_due.
-- Answers with the position as it is, the token that was lost if there was one, where the row is, the time,
-- whether a dead letter is to be handled again, and up to which id the log can be read.
-- Relies on: the primary keys of django_events_position and of the log.
WITH free AS MATERIALIZED (
    SELECT
        p.id,
        p.token AS lost_token,
        redrive.due AS redrive_due,
        last.id AS horizon,
        CASE
            WHEN %(async_commit)s AND p.token IS NULL AND p.attempts = 0 THEN set_config('synchronous_commit', 'off', true)
        END AS commits
    FROM django_events_position AS p
    JOIN django_events_consumer AS c ON c.id = p.consumer_id
    LEFT JOIN (
        SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id >= {floor} ORDER BY e.id DESC LIMIT 1
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
        AND (last.id > p.position OR redrive.due)
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
    free.redrive_due, free.horizon, free.commits


-- name: overdue
-- The lease of a position whose time is over.
--
-- Parameters: position_id.
-- Relies on: the primary key of django_events_position.
SELECT token
FROM django_events_position
WHERE id = %(position_id)s AND token IS NOT NULL AND leased_until <= clock_timestamp()
