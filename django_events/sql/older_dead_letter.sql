-- A dead letter of these that has an older one of the same key beside it which is not to be handled again, where its
-- consumer handles keys in order.
--
-- Parameters: ids.
-- Relies on: django_events_deadletter (consumer_id, key, event_id).
SELECT d.id, older.event_id
FROM django_events_deadletter AS d
JOIN django_events_consumer AS c ON c.id = d.consumer_id AND (c.mode = 'stream' OR c.ordered)
CROSS JOIN LATERAL (
    SELECT o.event_id
    FROM django_events_deadletter AS o
    WHERE o.consumer_id = d.consumer_id AND o.key = d.key AND o.event_id < d.event_id
        AND o.redrive_at IS NULL AND o.id <> ALL(%(ids)s::bigint[])
    ORDER BY o.event_id
    LIMIT 1
) AS older
WHERE d.id = ANY(%(ids)s::bigint[])
ORDER BY d.event_id
LIMIT 1
