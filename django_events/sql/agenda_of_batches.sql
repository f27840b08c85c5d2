-- As agenda.sql, for a consumer that waits until there are enough events for a batch.
--
-- A partition is due when enough of the next events match, when there are some to pass before the first that
-- matches and no more can be looked at, or when the oldest has waited long enough.
-- Literals: consumer_id, floor, enough (events of a batch), most (to look at), longest (to wait, in
-- seconds). Identifiers: log. Parts: events (which events `e` are in the partition of `p`), match, redrive_due.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of
-- the log, django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
SELECT
    p.id,
    greatest(
        coalesce(
            extract(
                epoch FROM
                greatest(p.retry_at, c.held_until, CASE WHEN p.token IS NOT NULL THEN p.leased_until END)
                - clock_timestamp()
            ),
            0
        ),
        CASE
            WHEN p.position < {floor} OR redrive.id IS NOT NULL OR unread.matching >= {enough} THEN 0
            WHEN unread.events >= {most} AND unread.first_match IS DISTINCT FROM unread.first THEN 0
            ELSE extract(epoch FROM unread.oldest - clock_timestamp()) + {longest}
        END
    )::float8 AS due_in,
    p.served_at,
    (SELECT min(position) FROM django_events_position WHERE consumer_id = {consumer_id}) AS floor
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
CROSS JOIN LATERAL (
    SELECT
        count(*) AS events, count(*) FILTER (WHERE {match}) AS matching,
        min(e.id) AS first, min(e.id) FILTER (WHERE {match}) AS first_match, min(e.logged_at) AS oldest
    FROM (
        SELECT e.* FROM {log} AS e
        WHERE {events} AND e.id > p.position AND e.id > {floor}
        ORDER BY e.id
        LIMIT {most}
    ) AS e
) AS unread
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
    AND (p.position < {floor} OR unread.events > 0 OR redrive.id IS NOT NULL)
