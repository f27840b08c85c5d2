-- name: fates
-- What each consumer of a topic has done with one event so far.
--
-- A stream's position says that an event was passed; a queue has a delivery while it isn't, and its history says what
-- became of it, where one is kept: what comes again is pending, whatever its history says. A position says nothing of
-- events that are older than the consumer. The last rewind that went over the event says whether it came again or was left
-- out; a queue without a history may have handled it before.
-- Parameters: topic_id, event_id. Identifiers: log. Parts: meets (whether the event `e` is for the consumer `c`; null: unknown).
-- Relies on: the primary keys of the log and of django_events_delivery, django_events_position (consumer_id,
-- partition), django_events_deadletter (consumer_id, event_id), django_events_intervention (consumer, at), the primary
-- keys of django_events_pastdelivery and django_events_deliverylease.
SELECT
    c.id, c.name, c.mode,
    CASE
        WHEN dead.id IS NOT NULL AND dead.redrive_at IS NULL THEN 'dead'
        WHEN d.token IS NOT NULL THEN 'leased'
        WHEN dead.id IS NOT NULL THEN 'redriven'
        WHEN d.event_id IS NOT NULL AND d.attempts > 0 THEN 'retrying'
        WHEN d.event_id IS NOT NULL AND d.visible_at > clock_timestamp() THEN 'delayed'
        WHEN d.event_id IS NOT NULL THEN 'pending'
        WHEN c.mode = 'queue' AND NOT c.live AND e.id > c.filled_until AND c.fits IS NOT false THEN 'pending'
        WHEN past.outcome IS NOT NULL THEN past.outcome
        WHEN c.mode <> 'queue' AND e.id > p.position AND c.fits IS NOT false THEN
            CASE
                WHEN p.attempted = e.id AND p.stopped_at IS NOT NULL THEN 'stopped'
                WHEN p.attempted = e.id AND p.token IS NOT NULL THEN 'leased'
                WHEN p.attempted = e.id AND p.attempts > 0 THEN 'retrying'
                ELSE 'pending'
            END
        WHEN NOT c.fits THEN 'filtered out'
        WHEN c.fits IS NULL THEN 'unknown'
        WHEN e.logged_at < c.registered_at THEN 'passed'
        ELSE coalesce(
            (
                SELECT
                    CASE
                        WHEN (i.details ->> 'before')::bigint > (i.details ->> 'after')::bigint THEN 'handled'
                        WHEN c.mode = 'queue' THEN 'rewound'
                        ELSE 'left out'
                    END
                FROM django_events_intervention AS i
                WHERE i.consumer = c.name
                    AND i.topic = t.name
                    AND i.action = 'rewind'
                    AND i.at >= c.registered_at
                    AND (i.details ->> 'partition')::int IN (-1, e.partition)
                    AND e.id >= least((i.details ->> 'before')::bigint, (i.details ->> 'after')::bigint)
                    AND e.id < greatest((i.details ->> 'before')::bigint, (i.details ->> 'after')::bigint)
                ORDER BY i.at DESC, i.id DESC
                LIMIT 1
            ),
            'handled'
        )
    END AS state,
    -- Of what is in hand, the first attempt is counted only when it has failed.
    coalesce(greatest(d.attempts, CASE WHEN d.token IS NOT NULL THEN 1 END), dead.attempts, past.attempts, CASE WHEN p.attempted = e.id THEN p.attempts END, 0) AS attempts,
    CASE
        WHEN d.token IS NOT NULL THEN d.last_at
        ELSE coalesce(dead.dead_at, past.processed_at, d.received_at)
    END AS since,
    CASE
        WHEN d.token IS NOT NULL THEN lease.leased_until
        WHEN d.event_id IS NOT NULL THEN d.visible_at
        WHEN p.attempted = e.id AND p.token IS NOT NULL THEN p.leased_until
        WHEN p.attempted = e.id THEN p.retry_at
    END AS until,
    coalesce(lease.holder, CASE WHEN p.attempted = e.id AND p.token IS NOT NULL THEN p.holder END, '') AS holder,
    coalesce(dead.error, nullif(d.error, ''), CASE WHEN p.attempted = e.id THEN p.error END, '') AS error,
    dead.id AS dead_letter_id
FROM {log} AS e
JOIN django_events_topic AS t ON t.id = e.topic_id
CROSS JOIN LATERAL (
    SELECT c.*, {meets} AS fits FROM django_events_consumer AS c WHERE c.topic_id = e.topic_id
) AS c
LEFT JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition IN (-1, e.partition)
LEFT JOIN django_events_delivery AS d ON d.consumer_id = c.id AND d.event_id = e.id
LEFT JOIN django_events_deliverylease AS lease ON lease.token = d.token
LEFT JOIN django_events_deadletter AS dead ON dead.consumer_id = c.id AND dead.event_id = e.id
LEFT JOIN LATERAL (
    SELECT h.outcome, h.processed_at, h.attempts
    FROM django_events_pastdelivery AS h
    WHERE h.consumer_id = c.id AND h.event_id = e.id
    ORDER BY h.processed_at DESC
    LIMIT 1
) AS past ON true
WHERE e.topic_id = %(topic_id)s AND e.id = %(event_id)s
ORDER BY c.name
