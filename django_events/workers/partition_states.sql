-- name: due_queue
-- Whether a queue consumer has something to do, and in how many seconds; as `due`.
--
-- It is due when a delivery is free, when a dead letter is to be handled again, or when the consumer is not live and has
-- room for deliveries of events in the log. A delivery that waits for another attempt, or is claimed, gets due later. Where
-- keys are in order, not every free delivery can be claimed. While the consumer isn't live, only deliveries up to
-- filled_until count. One that waits for other shards has no room from waits_from on. Up to the id `unclaimable`, a worker of this process found nothing to claim a moment ago.
-- Literals: consumer_id, unclaimable. Parts: redrive.
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL, django_events_deliverylease (consumer_id),
-- django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    CASE
        WHEN c.held_until > clock_timestamp() THEN extract(epoch FROM c.held_until - clock_timestamp())
        WHEN free.event_id IS NOT NULL OR redrive.id IS NOT NULL OR room.enough THEN 0
        ELSE extract(epoch FROM least(waiting.visible_at, lease.leased_until) - clock_timestamp())
    END::float8 AS due_in,
    p.served_at,
    p.position AS min_position,
    c.id AS consumer_id,
    p.layout,
    c.revision,
    false AS stands
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id > greatest(p.position, {unclaimable})
        AND (c.live OR d.event_id <= c.filled_until)
        AND d.visible_at IS NULL
        AND d.token IS NULL
    ORDER BY d.event_id
    LIMIT 1
) AS free ON true
LEFT JOIN LATERAL (
    SELECT d.visible_at
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.visible_at IS NOT NULL
        AND d.token IS NULL
        AND (c.live OR d.event_id <= c.filled_until)
    ORDER BY d.visible_at
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT l.leased_until FROM django_events_deliverylease AS l WHERE l.consumer_id = c.id ORDER BY l.leased_until LIMIT 1
) AS lease ON true
{redrive}
CROSS JOIN LATERAL (
    SELECT
        NOT c.live
        AND (c.waits_from IS NULL OR c.filled_until < c.waits_from - 1)
        AND (
            c.max_pending IS NULL
            OR (c.max_pending + 1) / 2 <= c.max_pending - (
                SELECT count(*)
                FROM (
                    SELECT
                    FROM django_events_delivery AS d
                    WHERE d.consumer_id = c.id AND d.event_id > p.position AND d.event_id <= c.filled_until
                    ORDER BY d.event_id
                    LIMIT c.max_pending
                ) AS pending
            )
        ) AS enough
) AS room
WHERE c.id = {consumer_id}
    AND p.partition = -1
    AND c.paused_at IS NULL
    AND p.stopped_at IS NULL
    AND (
        free.event_id IS NOT NULL OR waiting.visible_at IS NOT NULL OR lease.leased_until IS NOT NULL
        OR redrive.id IS NOT NULL OR room.enough
    )


-- name: due_batches
-- As `due`, for a consumer that waits until there are enough events for a batch.
--
-- A partition is due when enough of the next events match, when there are some to pass before the first that
-- matches and no more can be looked at, when no more can come before the barrier, or when the oldest has waited long enough.
-- Literals: consumer_id, min_position, enough (events of a batch), most (to look at), longest (to wait, in
-- seconds). Identifiers: log. Parts: events (which events `e` are in the partition of `p`), match, waiting,
-- redrive, lowest.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of
-- the log, django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    greatest(
        {waiting},
        CASE
            WHEN p.position < {min_position} OR redrive.id IS NOT NULL OR unread.matching >= {enough} THEN 0
            WHEN p.barrier IS NOT NULL AND (unread.last >= p.barrier OR unread.events < {most}) THEN 0
            WHEN unread.events >= {most} AND unread.first_match IS DISTINCT FROM unread.first THEN 0
            ELSE extract(epoch FROM unread.oldest - clock_timestamp()) + {longest}
        END
    )::float8 AS due_in,
    p.served_at,
    {lowest} AS min_position,
    c.id AS consumer_id,
    p.layout,
    c.revision,
    redrive.id IS NULL
    AND ((p.layout IS NULL AND p.partition <> -1) OR (p.position >= {min_position} AND coalesce(unread.first >= p.barrier, false)))
        AS stands
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS events, count(*) FILTER (WHERE {match}) AS matching,
        min(e.id) AS first, max(e.id) AS last, min(e.id) FILTER (WHERE {match}) AS first_match, min(e.logged_at) AS oldest
    FROM (
        SELECT e.* FROM {log} AS e
        WHERE {events} AND e.id > p.position AND e.id > {min_position}
        ORDER BY e.id
        LIMIT {most}
    ) AS e
) AS unread
{redrive}
WHERE c.id = {consumer_id}
    AND c.paused_at IS NULL
    AND p.stopped_at IS NULL
    AND ((p.position < {min_position} AND (p.layout IS NOT NULL OR p.partition = -1)) OR unread.events > 0 OR redrive.id IS NOT NULL)


-- name: due
-- The partitions in which one consumer has something to handle, and in how many seconds each may be claimed.
--
-- Zero or less is now. A retry, the lease of another worker and a hold have their time. A paused consumer and a stopped
-- partition have no row. Nothing is written and nothing is locked.
-- `min_position` is the consumer's lowest position at the last look: a literal, so that the planner opens no older segment. Only
-- a rewound position is below it. The first unread event is asked for by ORDER BY and LIMIT: for a mere EXISTS the planner
-- may hash all unread events.
-- A partition `stands` if its next event is behind the barrier, or if the layout that the consumer is read by has no such
-- partition: it has something to handle as soon as the other ones have come so far.
-- Literals: consumer_id, min_position. Identifiers: log. Parts: events (which events `e` are in the partition of `p`),
-- waiting, redrive, lowest.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of
-- the log, django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    {waiting}::float8 AS due_in,
    p.served_at,
    {lowest} AS min_position,
    c.id AS consumer_id,
    p.layout,
    c.revision,
    redrive.id IS NULL
    AND ((p.layout IS NULL AND p.partition <> -1) OR (p.position >= {min_position} AND coalesce(unread.id >= p.barrier, false)))
        AS stands
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN LATERAL (
    SELECT e.id
    FROM {log} AS e
    WHERE {events} AND e.id > p.position AND e.id > {min_position}
    ORDER BY e.id
    LIMIT 1
) AS unread ON true
{redrive}
WHERE c.id = {consumer_id}
    AND c.paused_at IS NULL
    AND p.stopped_at IS NULL
    AND ((p.position < {min_position} AND (p.layout IS NOT NULL OR p.partition = -1)) OR unread.id IS NOT NULL OR redrive.id IS NOT NULL)


-- name: lowest_position
-- Part of a look at a consumer: the lowest of the positions that it is read from now.
--
-- Literals: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
(
        SELECT min(own.position)
        FROM django_events_position AS own
        WHERE own.consumer_id = {consumer_id} AND (own.layout IS NOT NULL OR own.partition = -1)
    )


-- name: seconds_to_wait
-- Part of a look at a position `p` of a consumer `c`: for how many seconds it can't be claimed yet.
--
-- Relies on: nothing, it is an expression.
coalesce(
        extract(
            epoch FROM
            greatest(p.retry_at, c.held_until, CASE WHEN p.token IS NOT NULL THEN p.leased_until END)
            - clock_timestamp()
        ),
        0
    )


-- name: due_redrive
-- Part of a look at a consumer: one of its dead letters `d` that is due to be handled again.
--
-- Parts: condition.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
LEFT JOIN LATERAL (
    SELECT d.id
    FROM django_events_deadletter AS d
    WHERE {condition}
    ORDER BY d.event_id
    LIMIT 1
) AS redrive ON true
