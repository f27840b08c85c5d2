-- name: verify_rests
-- What lets consumers of a topic rest for longer than anything does by itself: a lease without an end, or a time that is
-- too far ahead.
--
-- Times are compared and told as text, for there may be one that clients can't read. A queue's deliveries may have been
-- made with its delay. Parameters: topic_id, lease, hold, claim, pause (intervals: what is too far ahead), most.
-- Answers with how many there are of the fault, the fault, consumer, partition or null, event or null, until when, and
-- whose it is.
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id),
-- django_events_delivery (consumer_id, visible_at) WHERE visible_at IS NOT NULL, django_events_deadletter
-- (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
WITH rest AS (
    SELECT c.name, 'held' AS fault, NULL::int AS partition, NULL::bigint AS event_id, c.held_until AS until, '' AS holder
    FROM django_events_consumer AS c
    WHERE c.topic_id = %(topic_id)s AND c.held_until > statement_timestamp() + %(hold)s
    UNION ALL
    SELECT c.name, 'lease', p.partition, NULL, p.leased_until, p.holder
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id
    WHERE c.topic_id = %(topic_id)s
        AND p.token IS NOT NULL
        AND (p.leased_until IS NULL OR p.leased_until > statement_timestamp() + %(lease)s)
    UNION ALL
    SELECT c.name, 'pause', p.partition, p.attempted, p.retry_at, ''
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id
    WHERE c.topic_id = %(topic_id)s AND p.retry_at > statement_timestamp() + %(pause)s
    UNION ALL
    SELECT c.name, 'claim', NULL, NULL, l.leased_until, l.holder
    FROM django_events_consumer AS c
    JOIN django_events_deliverylease AS l ON l.consumer_id = c.id
    WHERE c.topic_id = %(topic_id)s AND l.leased_until > statement_timestamp() + %(claim)s
    UNION ALL
    SELECT c.name, 'delivery', NULL, d.event_id, d.visible_at, ''
    FROM django_events_consumer AS c
    JOIN django_events_delivery AS d
        ON d.consumer_id = c.id AND d.visible_at > statement_timestamp() + %(pause)s + coalesce(c.delay, '0')
    WHERE c.topic_id = %(topic_id)s
    UNION ALL
    SELECT c.name, 'redrive', d.partition, d.event_id, d.redrive_at, ''
    FROM django_events_consumer AS c
    JOIN django_events_deadletter AS d
        ON d.consumer_id = c.id AND d.redrive_at IS NOT NULL AND d.redrive_at > statement_timestamp() + %(pause)s
    WHERE c.topic_id = %(topic_id)s
),
ranked AS (
    SELECT
        rest.*,
        count(*) OVER (PARTITION BY fault) AS total,
        row_number() OVER (PARTITION BY fault ORDER BY name, partition, event_id) AS rank
    FROM rest
)
SELECT total, fault, name, partition, event_id, until::text, holder
FROM ranked
WHERE rank <= %(most)s
ORDER BY fault, rank
