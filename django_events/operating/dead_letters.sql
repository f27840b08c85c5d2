-- name: lock_redriven
-- Lock the deliveries of dead letters that are handled again, before the dead letters, as who settles one does.
--
-- Parameters: ids (of dead letters).
-- Relies on: the primary keys of django_events_deadletter and django_events_delivery.
SELECT d.event_id
FROM django_events_deadletter AS l
JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
WHERE l.id = ANY(%(ids)s::bigint[])
ORDER BY d.consumer_id, d.event_id
FOR UPDATE OF d


-- name: older_dead_letter
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


-- name: redriven_now
-- The deliveries of dead letters that are handled again, and whether they are free: no worker has them in hand, no session has them locked.
--
-- Those that are free are locked.
-- Parameters: ids (of dead letters).
-- Relies on: the primary keys of django_events_deadletter and django_events_delivery.
WITH free AS MATERIALIZED (
    SELECT d.consumer_id, d.event_id
    FROM django_events_deadletter AS l
    JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
    WHERE l.id = ANY(%(ids)s::bigint[]) AND d.token IS NULL
    FOR UPDATE OF d SKIP LOCKED
)
SELECT d.event_id, free.event_id IS NOT NULL
FROM django_events_deadletter AS l
JOIN django_events_delivery AS d ON d.consumer_id = l.consumer_id AND d.event_id = l.event_id
LEFT JOIN free ON free.consumer_id = d.consumer_id AND free.event_id = d.event_id
WHERE l.id = ANY(%(ids)s::bigint[])
ORDER BY d.event_id


-- name: drop_those_in_log
-- Delete the dead letters of a consumer whose events are in its log.
--
-- Parameters: consumer_id. Literals: topic_id. Identifiers: log.
-- Relies on: django_events_deadletter (consumer_id, event_id), the primary key of the log.
DELETE FROM django_events_deadletter AS d
WHERE d.consumer_id = %(consumer_id)s
    AND EXISTS (SELECT FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id = d.event_id)
RETURNING d.event_id


-- name: bury_by_id
-- Copy events of the log into the dead letters of a consumer, each with its error.
--
-- Parameters: consumer_id, ids, errors (arrays of one length). Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
INSERT INTO django_events_deadletter (
    consumer_id, event_id, {copied_columns}, attempts, error, traceback, fingerprint
)
SELECT %(consumer_id)s, {event_columns of e}, 1, failed.error, '', failed.error
FROM unnest(%(ids)s::bigint[], %(errors)s::text[]) AS failed (id, error)
JOIN {log} AS e ON e.topic_id = {topic_id} AND e.id = failed.id
RETURNING event_id
