-- Whether a queue consumer has something to do, and in how many seconds it may be had; as agenda.sql.
--
-- While it isn't live, only what it is filled with counts. Something is due when a delivery is free, when it isn't live and has room for what is in the log, or when a dead
-- letter is to be handled again. What waits for another attempt, or is in somebody's hand, has its time. By key,
-- not all that is free can be had. Up to the floor, a worker of this process found nothing a moment ago.
-- Literals: consumer_id, floor. Parts: redrive.
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL, django_events_deliverylease (consumer_id),
-- django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    CASE
        WHEN c.held_until > clock_timestamp() THEN extract(epoch FROM c.held_until - clock_timestamp())
        WHEN free.event_id IS NOT NULL OR redrive.id IS NOT NULL OR room.enough THEN 0
        ELSE extract(epoch FROM least(waiting.visible_at, hand.leased_until) - clock_timestamp())
    END::float8 AS due_in,
    p.served_at,
    p.position AS floor
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id > greatest(p.position, {floor})
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
) AS hand ON true
LEFT JOIN LATERAL (
    SELECT d.id
    FROM django_events_deadletter AS d
    WHERE {redrive}
    ORDER BY d.event_id
    LIMIT 1
) AS redrive ON true
CROSS JOIN LATERAL (
    SELECT
        NOT c.live
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
        free.event_id IS NOT NULL OR waiting.visible_at IS NOT NULL OR hand.leased_until IS NOT NULL
        OR redrive.id IS NOT NULL OR room.enough
    )
