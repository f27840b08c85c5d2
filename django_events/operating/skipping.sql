-- name: lock_delivery
-- Have one delivery of a queue consumer for oneself, and the lease of who has it in hand: first that, as who settles does.
--
-- Parameters: consumer_id, event_id. Answers with nothing where there is no such delivery; else whether it is free,
-- because no worker has it or the lease is over; who has it; the attempts that are counted, and the last error.
-- Relies on: the primary keys of django_events_delivery and django_events_deliverylease.
WITH lease AS MATERIALIZED (
    SELECT l.token, l.holder, l.leased_until <= clock_timestamp() AS lapsed
    FROM django_events_delivery AS d
    JOIN django_events_deliverylease AS l ON l.token = d.token
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
    FOR UPDATE OF l
)
SELECT d.token IS NULL OR coalesce(lease.lapsed, false), lease.holder, d.attempts, d.error
FROM django_events_delivery AS d
LEFT JOIN lease ON lease.token = d.token
WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
FOR UPDATE OF d


-- name: skip_delivery
-- Delete a delivery of a queue consumer that is skipped, and write it into the history where one is kept.
--
-- In a later statement than `lock_delivery`. Parameters: consumer_id, event_id, history (whether it is kept), worker
-- (who skips it). Parts: told (`tell_skipped`, or `tell_nothing`). Answers with how many were deleted.
-- Relies on: the primary key of django_events_delivery.
WITH gone AS (
    DELETE FROM django_events_delivery AS d
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(event_id)s
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts, d.delivered
),
past AS (
    INSERT INTO django_events_pastdelivery (
        consumer_id, event_id, received_at, first_at, last_at, processed_at, attempts, delivered, outcome, worker
    )
    SELECT
        %(consumer_id)s, gone.event_id, gone.received_at, coalesce(gone.first_at, now.at), coalesce(gone.last_at, now.at),
        now.at, gone.attempts, gone.delivered, 'dead', %(worker)s
    FROM gone
    CROSS JOIN (SELECT clock_timestamp() AS at) AS now
    WHERE %(history)s
)
{told}
SELECT count(*) FROM gone


-- name: tell_skipped
-- Part of `skip_delivery`: publish that it is a dead letter, where the consumer's outcomes go: see `tell_outcomes`.
--
-- Parameters: consumer_id, worker.
-- Relies on: the primary keys of django_events_consumer and django_events_topic, django_events_topic (name).
, told AS (
    INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
    SELECT
        django_events_open(c.outcomes), 'dead', t.name || '/' || gone.event_id,
        jsonb_build_object(
            'consumer', c.name, 'topic', t.name, 'event', gone.event_id, 'attempt', greatest(gone.attempts, 1),
            'waited', extract(epoch FROM coalesce(gone.first_at, now.at) - gone.received_at),
            'lasted', 0,
            'took', extract(epoch FROM now.at - gone.received_at),
            'worker', %(worker)s::text,
            'error', 'Skipped'
        ),
        jsonb_build_object()
    FROM gone
    JOIN django_events_consumer AS c ON c.id = %(consumer_id)s AND c.outcomes IS NOT NULL
    JOIN django_events_topic AS t ON t.id = c.topic_id
    CROSS JOIN (SELECT clock_timestamp() AS at) AS now
)


-- name: tell_nothing
-- Part of `skip_delivery`, of a consumer that says nowhere what became of its events.
, told AS (SELECT)


-- name: bury_from_log
-- Copy an event of the log into the dead letters of a consumer, inside the server: it may be too large for any client.
--
-- Literals: topic_id, event_id. Identifiers: log. Parameters: consumer_id, attempts, error, traceback, fingerprint.
-- Answers with nothing where the log has no such event. A dead letter that is there already is an error.
-- Relies on: the primary key of the log.
INSERT INTO django_events_deadletter (
    consumer_id, event_id, {copied_columns}, attempts, error, traceback, fingerprint
)
SELECT
    %(consumer_id)s, {event_columns of e}, %(attempts)s, %(error)s, %(traceback)s, %(fingerprint)s
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = {event_id}
RETURNING id
