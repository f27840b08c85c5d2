-- name: figures
-- What becomes of the deliveries of queue consumers at this moment: how many are in each state, and the oldest of each.
--
-- Available ones are counted among the oldest deliveries, those that wait for a time among the ones that are due first,
-- each up to `most`. What is in hand is told by the leases, so it is exact, and each is looked up by itself: see
-- `deliveries_of_token`. A dead letter that is handled again counts as a delivery, from when a worker has made one of it.
-- Parameters: consumer_ids, most.
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL, django_events_deliverylease (consumer_id),
-- django_events_deadletter (consumer_id, event_id).
SELECT
    c.id,
    least(oldest.free, %(most)s), oldest.seen > %(most)s, clock_timestamp() - oldest.free_since,
    hand.events, clock_timestamp() - hand.received_at, clock_timestamp() - hand.taken_at,
    least(later.waiting, %(most)s), later.seen > %(most)s, clock_timestamp() - later.waiting_since,
    least(later.retrying, %(most)s), clock_timestamp() - later.retrying_since,
    least(dead.letters, %(most)s), dead.seen > %(most)s, clock_timestamp() - dead.since
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
CROSS JOIN LATERAL (
    SELECT
        count(*) AS seen,
        count(*) FILTER (WHERE d.free) AS free,
        min(d.received_at) FILTER (WHERE d.free) AS free_since
    FROM (
        SELECT
            d.received_at,
            d.token IS NULL AND (d.visible_at IS NULL OR d.visible_at <= statement_timestamp()) AS free
        FROM django_events_delivery AS d
        WHERE d.consumer_id = c.id AND d.event_id > p.position AND (c.live OR d.event_id <= c.filled_until)
        ORDER BY d.event_id
        LIMIT %(most)s + 1
    ) AS d
) AS oldest
CROSS JOIN LATERAL (
    SELECT count(*) AS events, min(leased.received_at) AS received_at, min(leased.last_at) AS taken_at
    FROM django_events_deliverylease AS l
    CROSS JOIN LATERAL jsonb_array_elements_text(l.event_ids) AS held (id)
    CROSS JOIN LATERAL (
        SELECT d.received_at, d.last_at
        FROM django_events_delivery AS d
        WHERE d.consumer_id = l.consumer_id AND d.event_id = held.id::bigint AND d.token = l.token
        LIMIT 1
    ) AS leased
    WHERE l.consumer_id = c.id
) AS hand
CROSS JOIN LATERAL (
    SELECT
        count(*) AS seen,
        count(*) FILTER (WHERE d.attempts = 0) AS waiting,
        min(d.received_at) FILTER (WHERE d.attempts = 0) AS waiting_since,
        count(*) FILTER (WHERE d.attempts > 0) AS retrying,
        min(d.received_at) FILTER (WHERE d.attempts > 0) AS retrying_since
    FROM (
        SELECT d.received_at, d.attempts
        FROM django_events_delivery AS d
        WHERE d.consumer_id = c.id
            AND d.visible_at > statement_timestamp()
            AND d.token IS NULL
            AND (c.live OR d.event_id <= c.filled_until)
        ORDER BY d.visible_at
        LIMIT %(most)s + 1
    ) AS d
) AS later
CROSS JOIN LATERAL (
    SELECT
        count(*) AS seen,
        count(*) FILTER (WHERE d.dead) AS letters,
        min(d.dead_at) FILTER (WHERE d.dead) AS since
    FROM (
        SELECT
            d.dead_at,
            d.redrive_at IS NULL
            OR NOT EXISTS (
                SELECT FROM django_events_delivery AS again
                WHERE again.consumer_id = c.id AND again.event_id = d.event_id
            ) AS dead
        FROM django_events_deadletter AS d
        WHERE d.consumer_id = c.id
        ORDER BY d.event_id
        LIMIT %(most)s + 1
    ) AS d
) AS dead
WHERE c.id = ANY(%(consumer_ids)s::int[]) AND c.mode = 'queue'
ORDER BY c.id
