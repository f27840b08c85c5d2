-- The partitions in which one consumer has something to handle, and in how many seconds each may be claimed.
--
-- Zero or less is now. A retry, the lease of somebody else and a hold are waited for; what is paused
-- or stopped isn't here at all. Nothing is written and nothing is locked.
-- The floor is what this said about the lowest position before: a literal, so that the planner opens no
-- older segment. Only a rewound position is below it. The first unread event is asked for by order and
-- limit: for a mere EXISTS the planner may hash all that is unread.
-- Literals: consumer_id, floor. Identifiers: log. Parts: events (which events `e` are in the partition of `p`),
-- redrive_due.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of
-- the log, django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    coalesce(
        extract(
            epoch FROM
            greatest(p.retry_at, c.held_until, CASE WHEN p.token IS NOT NULL THEN p.leased_until END)
            - clock_timestamp()
        ),
        0
    )::float8 AS due_in,
    p.served_at,
    (SELECT min(position) FROM django_events_position WHERE consumer_id = {consumer_id}) AS floor
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN LATERAL (
    SELECT e.id
    FROM {log} AS e
    WHERE {events} AND e.id > p.position AND e.id > {floor}
    ORDER BY e.id
    LIMIT 1
) AS unread ON true
LEFT JOIN LATERAL (
    SELECT d.id
    FROM django_events_deadletter AS d
    WHERE {redrive_due}
    ORDER BY d.event_id
    LIMIT 1
) AS redrive ON true
WHERE c.id = {consumer_id}
    AND c.paused_at IS NULL
    AND p.stopped_at IS NULL
    AND (p.position < {floor} OR unread.id IS NOT NULL OR redrive.id IS NOT NULL)
