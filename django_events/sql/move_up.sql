-- Move the position of a queue consumer up to its oldest delivery, and add what was done to its counts.
--
-- In a later statement than the one that locked it: a rewind, which makes older deliveries, takes the same lock.
-- Nothing is written where nothing changes. While the consumer is not live, nothing is known behind what it is filled with.
-- Parameters: consumer_id, handled, failed, discarded, dead_lettered (how many more).
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery.
UPDATE django_events_position AS p
SET
    position = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    number = greatest(p.position, least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END)),
    handled = p.handled + %(handled)s,
    failed = p.failed + %(failed)s,
    discarded = p.discarded + %(discarded)s,
    dead_lettered = p.dead_lettered + %(dead_lettered)s,
    served_at = clock_timestamp()
FROM django_events_consumer AS c
LEFT JOIN LATERAL (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = c.id
        AND d.event_id > (
            SELECT own.position FROM django_events_position AS own WHERE own.consumer_id = c.id AND own.partition = -1
        )
    ORDER BY d.event_id
    LIMIT 1
) AS oldest ON true
WHERE c.id = %(consumer_id)s
    AND p.consumer_id = c.id
    AND p.partition = -1
    AND (
        %(handled)s + %(failed)s + %(discarded)s > 0
        OR least(oldest.event_id - 1, CASE WHEN NOT c.live THEN c.filled_until END) > p.position
    )
RETURNING p.position
