-- name: progress
-- How far consumers are in their partitions, and what goes on there, by name, topic and partition.
--
-- The lag of a stream is a subtraction, from where the log of each partition ends: it costs the same however long the
-- log is. That of a queue is a count of its deliveries, up to `most_pending`.
-- Parameters: consumer_ids (null for all); most_pending (null to count all); topic_ids, partitions, ends (arrays of one
-- length: the last number of each partition, and under partition -1 the last id of the topic). Parts: partitions, state.
-- Relies on: what `partitions` does.
SELECT
    c.name, t.name, p.partition, p.position, log.ends_at AS last_id, p.events, p.more, {state} AS state,
    p.handled, p.failed, p.ignored, p.dead_lettered, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    p.served_at, p.failing_since
FROM ({partitions}) AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
LEFT JOIN unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(ends)s::bigint[]) AS log (topic_id, partition, ends_at)
    ON log.topic_id = c.topic_id AND log.partition = -1
ORDER BY c.name, t.name, p.partition


-- name: partitions
-- Part of a FROM: positions with what goes on in them. Of a queue consumer that is told by its deliveries and their leases.
--
-- Its position is where the filling stopped, or the end of what it was given if it has finished all of that.
-- `events` is how many it has not passed yet, `more` that there are more than were counted.
-- Streams come first, by themselves: for each of very many partitions it counts what is done.
-- Parameters: consumer_ids (null for all), most_pending (deliveries to count, null for all), topic_ids, partitions,
-- ends (arrays of one length: the last number of each partition, and under partition -1 the last id of the topic).
-- Relies on: django_events_position (consumer_id, partition), the primary key of django_events_delivery and
-- (consumer_id, visible_at) WHERE visible_at IS NOT NULL, django_events_deliverylease (consumer_id).
SELECT
    p.id, p.consumer_id, p.partition, p.position,
    p.handled, p.failed, p.ignored, p.dead_lettered, p.stopped_at, p.served_at,
    p.attempted, p.attempts, p.retry_at, p.failing_since, p.error, p.token, p.leased_until, p.holder,
    false AS more,
    greatest(coalesce(log.ends_at, 0) - CASE WHEN p.partition = -1 THEN p.position ELSE p.number END, 0) AS events
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(ends)s::bigint[]) AS log (topic_id, partition, ends_at)
    ON log.topic_id = c.topic_id AND log.partition = p.partition
WHERE c.mode <> 'queue' AND (%(consumer_ids)s::int[] IS NULL OR c.id = ANY(%(consumer_ids)s::int[]))
UNION ALL
SELECT
    p.id, p.consumer_id, p.partition,
    CASE
        WHEN p.stopped_at IS NULL AND pending.events > 0 THEN p.position
        WHEN c.live THEN coalesce(log.ends_at, 0)
        ELSE c.filled_until
    END,
    p.handled, p.failed, p.ignored, p.dead_lettered, p.stopped_at, p.served_at,
    coalesce(waiting.event_id, p.attempted),
    coalesce(waiting.attempts, p.attempts),
    coalesce(waiting.visible_at, p.retry_at),
    p.failing_since,
    CASE WHEN p.error = '' THEN coalesce(waiting.error, '') ELSE p.error END,
    coalesce(lease.token, p.token),
    coalesce(lease.leased_until, p.leased_until),
    coalesce(lease.holder, p.holder),
    coalesce(pending.events > %(most_pending)s::bigint, false),
    least(pending.events, %(most_pending)s::bigint)
    + CASE WHEN c.live THEN 0 ELSE greatest(coalesce(log.ends_at, 0) - c.filled_until, 0) END
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
LEFT JOIN unnest(%(topic_ids)s::int[], %(partitions)s::int[], %(ends)s::bigint[]) AS log (topic_id, partition, ends_at)
    ON log.topic_id = c.topic_id AND log.partition = p.partition
CROSS JOIN LATERAL (
    SELECT count(*) AS events
    FROM (
        SELECT
        FROM django_events_delivery AS d
        WHERE d.consumer_id = c.id AND d.event_id > p.position AND (c.live OR d.event_id <= c.filled_until)
        ORDER BY d.event_id
        LIMIT %(most_pending)s::bigint + 1
    ) AS delivery
) AS pending
LEFT JOIN LATERAL (
    SELECT l.token, l.leased_until, l.holder
    FROM django_events_deliverylease AS l
    WHERE l.consumer_id = c.id
    ORDER BY l.leased_until DESC
    LIMIT 1
) AS lease ON true
LEFT JOIN LATERAL (
    SELECT next.event_id, next.attempts, next.visible_at, next.error
    FROM (
        SELECT d.event_id, d.attempts, d.visible_at, d.error
        FROM django_events_delivery AS d
        WHERE d.consumer_id = c.id AND d.visible_at IS NOT NULL
        ORDER BY d.visible_at
        LIMIT 1000
    ) AS next
    WHERE next.attempts > 0
    LIMIT 1
) AS waiting ON true
WHERE c.mode = 'queue' AND (%(consumer_ids)s::int[] IS NULL OR c.id = ANY(%(consumer_ids)s::int[]))


-- name: standings
-- How consumers stand on their topics: the partitions of each added up, and the one in the worst state.
--
-- The lag of a stream is a subtraction, from where the log of each partition ends; deliveries and dead letters are
-- counted up to a limit. So it costs the same however many events there are.
-- The worst partition is found by one number: its place in the list of states, and the partition behind it.
-- Parameters: consumer_ids (null for all); most (dead letters); most_pending (deliveries); topic_ids, partitions, ends (arrays of one length: the last
-- number of each partition, and under partition -1 the last id of the topic). Parts: partitions, state.
-- Relies on: what `partitions` does, django_events_deadletter (consumer_id, event_id).
WITH p AS MATERIALIZED (
    SELECT
        part.*,
        array_position(ARRAY['stopped', 'retrying', 'lost', 'paused', 'handling', 'idle'], part.state) AS rank
    FROM (
        SELECT p.*, {state} AS state
        FROM ({partitions}) AS p
        JOIN django_events_consumer AS c ON c.id = p.consumer_id
    ) AS part
),
total AS (
    SELECT
        p.consumer_id,
        min(p.rank * 1000000::bigint + p.partition) AS worst,
        ARRAY[
            count(*) FILTER (WHERE p.rank = 1), count(*) FILTER (WHERE p.rank = 2), count(*) FILTER (WHERE p.rank = 3),
            count(*) FILTER (WHERE p.rank = 4), count(*) FILTER (WHERE p.rank = 5), count(*) FILTER (WHERE p.rank = 6)
        ] AS in_states,
        count(*) AS partitions,
        sum(p.events)::bigint AS lag,
        bool_or(p.more) AS more_lag,
        sum(p.handled)::bigint AS handled,
        sum(p.failed)::bigint AS failed,
        sum(p.ignored)::bigint AS ignored,
        sum(p.dead_lettered)::bigint AS dead_lettered,
        max(p.served_at) AS served_at,
        min(p.failing_since) AS failing_since
    FROM p
    GROUP BY p.consumer_id
)
SELECT
    c.name, t.name, c.mode,
    p.state, total.in_states[p.rank] AS in_state, total.partitions, total.lag, total.more_lag,
    total.handled, total.failed, total.ignored, total.dead_lettered,
    least(dead.letters, %(most)s) AS dead_letters, dead.letters > %(most)s AS more_dead_letters,
    p.partition, p.position, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    total.served_at, clock_timestamp() - greatest(total.served_at, p.retry_at) AS unserved_for, c.paused_at,
    c.id, c.topic_id, total.failing_since
FROM total
JOIN p ON p.consumer_id = total.consumer_id AND p.rank * 1000000::bigint + p.partition = total.worst
JOIN django_events_consumer AS c ON c.id = total.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
CROSS JOIN LATERAL (
    SELECT count(*) AS letters
    FROM (
        -- In the order of the index: a planner that knows of one busy consumer would rather read the table.
        SELECT FROM django_events_deadletter AS d
        WHERE d.consumer_id = total.consumer_id
        ORDER BY d.event_id
        LIMIT %(most)s + 1
    ) AS letter
) AS dead
ORDER BY c.name, t.name


-- name: end_of_log
-- The last id of a topic's log, under partition -1; null where the log is empty.
--
-- Literals: topic_id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT
    {topic_id} AS topic_id,
    -1 AS partition,
    (SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1) AS ends_at


-- name: kinds_of_consumers
-- The topics of these consumers, and how they look at them: what decides how their oldest events are found.
--
-- Parameters: consumer_ids.
-- Relies on: the primary keys of django_events_consumer and django_events_topic.
SELECT DISTINCT c.topic_id, t.partitions = 1 AND t.layouts = '[]' AS is_undivided, c.mode, c.partitioned
FROM django_events_consumer AS c
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE c.id = ANY(%(consumer_ids)s::int[])
ORDER BY c.topic_id, c.mode, c.partitioned


-- name: oldest_unsettled
-- For how long queue consumers of a topic have had their oldest delivery that isn't settled, whatever became of it so far, or the
-- oldest event is in the log that they have no delivery of yet; null if there is neither.
--
-- A delay that the consumer asks for is no waiting: the time may be in the future.
-- Literals: consumer_ids (an array), topic_id. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), the primary keys of django_events_delivery and of the log.
SELECT
    c.id AS consumer_id,
    clock_timestamp() - coalesce(c.delay, interval '0') - coalesce(
        (
            SELECT d.received_at
            FROM django_events_delivery AS d
            WHERE d.consumer_id = c.id AND d.event_id > p.position
            ORDER BY d.event_id
            LIMIT 1
        ),
        (
            SELECT e.logged_at
            FROM {log} AS e
            WHERE NOT c.live AND e.topic_id = {topic_id} AND e.id > c.filled_until
            ORDER BY e.id
            LIMIT 1
        )
    )
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = ANY({consumer_ids}::int[]) AND c.topic_id = {topic_id} AND c.mode = 'queue'


-- name: oldest_due
-- For how long the oldest delivery waits that queue consumers of a topic could handle now, or the oldest event in the log that it
-- has no delivery of yet; null if there is neither. What is in the hands of a worker whose lease is over could be handled.
--
-- It is looked for among the oldest thousand: where all of those are in hand or wait for a time, a million may be.
-- Literals: consumer_ids (an array), topic_id. Identifiers: log.
-- Relies on: django_events_position (consumer_id, partition), the primary keys of django_events_delivery,
-- django_events_deliverylease and of the log.
SELECT
    c.id AS consumer_id,
    clock_timestamp() - coalesce(
        (
            SELECT d.received_at
            FROM (
                SELECT d.event_id, d.received_at, d.token, d.visible_at
                FROM django_events_delivery AS d
                WHERE d.consumer_id = c.id AND d.event_id > p.position
                ORDER BY d.event_id
                LIMIT 1000
            ) AS d
            WHERE (d.visible_at IS NULL OR d.visible_at <= clock_timestamp())
                AND (
                    d.token IS NULL
                    OR NOT EXISTS (
                        SELECT
                        FROM django_events_deliverylease AS l
                        WHERE l.token = d.token AND l.leased_until > clock_timestamp()
                    )
                )
            ORDER BY d.event_id
            LIMIT 1
        ),
        (
            SELECT e.logged_at
            FROM {log} AS e
            WHERE NOT c.live AND e.topic_id = {topic_id} AND e.id > c.filled_until
            ORDER BY e.id
            LIMIT 1
        )
    )
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = ANY({consumer_ids}::int[]) AND c.topic_id = {topic_id} AND c.mode = 'queue'


-- name: oldest_unpassed
-- For how long the oldest event of a topic waits that streams have not passed yet, filtered ones included; of those that
-- have one.
--
-- Many consumers stand at the same event of a partition, most of them at its end: it is looked for once.
-- Literals: consumer_ids (an array), topic_id, lowest, highest (of the partitions that their positions are in).
-- Identifiers: log. Parts: events (which events `e` are in the partition of `p`).
-- Relies on: django_events_position (consumer_id, partition), (partition, id) or the primary key of the log.
WITH standing AS MATERIALIZED (
    SELECT p.consumer_id, p.partition, p.position
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id
    WHERE c.id = ANY({consumer_ids}::int[])
        AND c.topic_id = {topic_id}
        AND c.mode <> 'queue'
        AND p.partition BETWEEN {lowest} AND {highest}
),
oldest AS MATERIALIZED (
    SELECT p.partition, p.position, next.logged_at
    FROM (SELECT DISTINCT s.partition, s.position FROM standing AS s) AS p
    CROSS JOIN LATERAL (
        SELECT e.logged_at FROM {log} AS e WHERE {events} AND e.id > p.position ORDER BY e.id LIMIT 1
    ) AS next
)
SELECT s.consumer_id, clock_timestamp() - min(oldest.logged_at)
FROM standing AS s
JOIN oldest ON oldest.partition = s.partition AND oldest.position = s.position
GROUP BY s.consumer_id
