-- Lease one partition of a consumer under a new token, if it is free.
--
-- A lease is free when its holder settled, or when its time is over: then the holder died or froze,
-- and the answer has its token. The token is random and fences: whoever holds an older one settles nothing.
-- The commit need not wait for the disk unless an attempt failed before: a lease that a crash of the
-- server takes back was not used for anything that survived the crash.
-- Where the log has nothing behind the position, nothing is written. The floor is no more than the position, unless
-- that was rewound: a literal, so that the planner opens no older segment.
-- Parameters: position_id, token, lease (an interval), holder, hurry (whether the commit may skip the disk).
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
            WHEN %(hurry)s AND p.token IS NULL AND p.attempts = 0 THEN set_config('synchronous_commit', 'off', true)
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
