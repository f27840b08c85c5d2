-- name: read_deliveries
-- The events of some deliveries, in order: a part of `bounded`.
--
-- Bounds are literals, so that the planner opens only the segments between them.
-- Literals: first, last. Identifiers: log. Parameters: topic_id, event_ids.
-- Relies on: the primary key of the log.
SELECT {event_columns of e}
FROM {log} AS e
WHERE e.topic_id = %(topic_id)s AND e.id = ANY(%(event_ids)s::bigint[]) AND e.id >= {first} AND e.id <= {last}
ORDER BY e.id


-- name: read_leased
-- The events of the deliveries that are leased under a token, if they are in one segment, in order: a part of `light`.
--
-- It is prepared, and asked in the message that claims them. `ONLY log` has no rows: see `claim_and_read`.
-- Literals: topic_id. Identifiers: log, segment. Parameters: token.
-- Relies on: the primary keys of the segment and of django_events_deliverylease.
SELECT {event_columns of e}
FROM {segment} AS e
WHERE e.topic_id = {topic_id}
    AND e.id = ANY(
        ARRAY(
            SELECT leased.id::bigint
            FROM django_events_deliverylease AS l
            CROSS JOIN LATERAL jsonb_array_elements_text(l.event_ids) AS leased (id)
            WHERE l.token = %(token)s::bigint
        )
    )
    AND NOT EXISTS (SELECT FROM ONLY {log})
ORDER BY e.id


-- name: count_delivery_attempt
-- Count an attempt at a delivery before it starts, so that it is counted even if the handler ends its process.
--
-- The commit waits for the disk: a crash of the server must not forget the attempt.
-- Parameters: consumer_id, event_id, token.
-- Relies on: the primary key of django_events_delivery.
UPDATE django_events_delivery
SET attempts = attempts + 1
WHERE consumer_id = %(consumer_id)s AND event_id = %(event_id)s AND token = %(token)s
RETURNING attempts,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END


-- name: extend_lease
-- Let the lease of claimed deliveries end after a time from now on. Zero ends it without settling: the next worker takes
-- it over, and goes on carefully.
--
-- Parameters: token, lease (an interval). Answers with it if it still was a lease.
-- Relies on: the primary key of django_events_deliverylease.
UPDATE django_events_deliverylease SET leased_until = clock_timestamp() + %(lease)s WHERE token = %(token)s RETURNING token


-- name: settle_deliveries
-- Settle some of the deliveries that are claimed under a token, if it is still that of the lease.
--
-- Handled deliveries are deleted, with their dead letter if it was handled again, and written into the consumer's history
-- if it keeps one. A failed delivery waits for its next attempt. Released deliveries are free at once.
-- No answer means that the lease was lost. A count that is too small means that a delivery was taken away, as by a rewind.
-- Parameters: consumer_id, token, done (ids), outcome (of the delivery that is `passed`, an id or null: what became of it
-- instead of being handled), history (whether the consumer's history, if it keeps one, is written), failed (an id, or
-- null), attempts, pause (an interval), error (of the failed one), released (ids), ends (whether no delivery is claimed
-- any more), lock (whether to take the lock of `take_lock`, by which a worker that freezes before COMMIT is found).
-- Parts: told (`tell_outcomes`, or `tell_nothing`).
-- Answers with how many were deleted, whether the transaction is still the one that began with `take_lock`, and whether
-- the lock was taken, null if that was not asked for. If it was not taken, nothing must be committed: a takeover is under
-- way.
-- Relies on: the primary keys of django_events_deliverylease, django_events_delivery and django_events_consumer,
-- django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL.
WITH mine AS MATERIALIZED (
    SELECT token, holder FROM django_events_deliverylease WHERE token = %(token)s FOR UPDATE
),
done AS (
    DELETE FROM django_events_delivery AS d
    USING mine
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(%(done)s::bigint[])
        AND d.event_id >= (SELECT min(id) FROM unnest(%(done)s::bigint[]) AS id)
        AND d.event_id <= (SELECT max(id) FROM unnest(%(done)s::bigint[]) AS id)
        AND d.token = mine.token
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts, d.delivered
),
past AS (
    INSERT INTO django_events_pastdelivery (
        consumer_id, event_id, received_at, first_at, last_at, processed_at, attempts, delivered, outcome, worker
    )
    SELECT
        %(consumer_id)s, done.event_id, done.received_at, done.first_at, done.last_at, clock_timestamp(),
        greatest(done.attempts, 1), done.delivered,
        CASE WHEN done.event_id = %(passed)s THEN %(outcome)s ELSE 'handled' END, mine.holder
    FROM done
    CROSS JOIN mine
    WHERE %(history)s
        AND EXISTS (SELECT FROM django_events_consumer AS c WHERE c.id = %(consumer_id)s AND c.history IS NOT NULL)
),
redriven AS (
    DELETE FROM django_events_deadletter AS d
    USING mine
    WHERE d.consumer_id = %(consumer_id)s AND d.redrive_at IS NOT NULL AND d.event_id = ANY(%(done)s::bigint[])
),
failed AS (
    UPDATE django_events_delivery AS d
    SET
        token = NULL,
        visible_at = clock_timestamp() + %(pause)s::interval,
        attempts = %(attempts)s,
        error = %(error)s
    FROM mine
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = %(failed)s AND d.token = mine.token
    RETURNING d.event_id, d.received_at, d.first_at, d.last_at, d.attempts
),
released AS (
    UPDATE django_events_delivery AS d
    SET token = NULL
    FROM mine
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = ANY(%(released)s::bigint[]) AND d.token = mine.token
),
ended AS (
    DELETE FROM django_events_deliverylease AS l USING mine WHERE l.token = mine.token AND %(ends)s
)
{told}
SELECT
    (SELECT count(*) FROM done),
    current_setting('django_events.token', true) = %(token)s::text,
    CASE WHEN %(lock)s THEN pg_try_advisory_xact_lock(%(token)s) END
FROM mine


-- name: tell_outcomes
-- Part of `settle_deliveries`: publish what became of its deliveries, if the consumer says where.
--
-- In the transaction that settles them, so each attempt that ends is told once.
-- Parameters: consumer_id, passed, outcome, error, history.
-- Relies on: the primary keys of django_events_consumer and django_events_topic, django_events_topic (name).
, opened AS MATERIALIZED (
    SELECT django_events_open(c.outcomes) AS topic_id, c.name AS consumer, t.name AS topic
    FROM django_events_consumer AS c
    JOIN django_events_topic AS t ON t.id = c.topic_id
    WHERE c.id = %(consumer_id)s
        AND c.outcomes IS NOT NULL
        AND %(history)s
        AND (EXISTS (SELECT FROM done) OR EXISTS (SELECT FROM failed))
),
became AS (
    SELECT
        CASE WHEN done.event_id = %(passed)s THEN %(outcome)s ELSE 'handled' END AS type,
        done.event_id, done.received_at, done.first_at, done.last_at, greatest(done.attempts, 1) AS attempt
    FROM done
    UNION ALL
    SELECT 'failed', f.event_id, f.received_at, f.first_at, f.last_at, greatest(f.attempts, 1) FROM failed AS f
),
told AS (
    INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
    SELECT
        opened.topic_id, became.type, opened.topic || '/' || became.event_id,
        jsonb_build_object(
            'consumer', opened.consumer, 'topic', opened.topic, 'event', became.event_id, 'attempt', became.attempt,
            'waited', extract(epoch FROM became.first_at - became.received_at),
            'lasted', extract(epoch FROM now.at - became.last_at),
            'took', extract(epoch FROM now.at - became.received_at),
            'worker', mine.holder,
            'error', CASE WHEN became.type <> 'handled' THEN split_part(%(error)s, ':', 1) END
        ),
        jsonb_build_object()
    FROM opened
    CROSS JOIN became
    CROSS JOIN mine
    CROSS JOIN (SELECT clock_timestamp() AS at) AS now
    ORDER BY became.event_id
)


-- name: tell_nothing
-- Part of `settle_deliveries`, of a consumer that says nowhere what became of its events: it needs no right to publish.
, told AS (SELECT)


-- name: split_lease
-- Leave some of the claimed deliveries under their lease, and put the rest under a new one that is over.
--
-- Parameters: consumer_id, token, kept and rest (ids), new_token. No answer means that the lease was lost.
-- Relies on: the primary keys of django_events_deliverylease and django_events_delivery.
WITH mine AS MATERIALIZED (
    UPDATE django_events_deliverylease
    SET event_ids = to_jsonb(%(kept)s::bigint[])
    WHERE token = %(token)s
    RETURNING consumer_id, holder
),
parted AS (
    UPDATE django_events_delivery AS d
    SET token = %(new_token)s
    FROM mine
    WHERE d.consumer_id = %(consumer_id)s AND d.event_id = ANY(%(rest)s::bigint[]) AND d.token = %(token)s
    RETURNING d.event_id
),
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT %(new_token)s, mine.consumer_id, clock_timestamp(), mine.holder, jsonb_agg(parted.event_id)
    FROM mine
    CROSS JOIN parted
    GROUP BY mine.consumer_id, mine.holder
)
SELECT mine.consumer_id FROM mine
