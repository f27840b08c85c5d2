-- Take over what a worker had in hand when its lease ended, under a new token, if there is such a lease.
--
-- Parameters: consumer_id, token, lease (an interval), holder, ours (tokens that this process still has in hand:
-- its handlers are at work). Nothing is taken over without enter.sql before. Answers with the token that was lost, each event,
-- the attempts that are counted and its key; with one row and no event if nothing of it is left.
-- Relies on: django_events_deliverylease (consumer_id), django_events_position (consumer_id, partition), the primary
-- key of django_events_delivery.
WITH lost AS MATERIALIZED (
    SELECT l.token, l.event_ids
    FROM django_events_deliverylease AS l
    JOIN django_events_consumer AS c ON c.id = l.consumer_id
    JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    WHERE l.consumer_id = %(consumer_id)s
        AND l.leased_until <= clock_timestamp()
        AND l.token <> ALL(%(ours)s::bigint[])
        AND current_setting('django_events.claims', true) = %(consumer_id)s::text
        AND p.stopped_at IS NULL
        AND c.paused_at IS NULL
        AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
    ORDER BY l.leased_until
    LIMIT 1
    FOR UPDATE OF l SKIP LOCKED
),
taken AS (
    UPDATE django_events_deliverylease AS l
    SET token = %(token)s, leased_until = clock_timestamp() + %(lease)s, holder = %(holder)s
    FROM lost
    WHERE l.token = lost.token
),
deliveries AS (
    UPDATE django_events_delivery AS d
    SET token = %(token)s, delivered = d.delivered + 1, last_at = clock_timestamp()
    FROM lost
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(
            ARRAY(SELECT event.id::bigint FROM lost, jsonb_array_elements_text(lost.event_ids) AS event (id))
        )
        AND d.token = lost.token
    RETURNING d.event_id, d.attempts, d.key
)
SELECT lost.token, deliveries.event_id, deliveries.attempts, deliveries.key
FROM lost
LEFT JOIN deliveries ON true
ORDER BY deliveries.event_id
