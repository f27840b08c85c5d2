-- How consumers stand on their topics: the partitions of each added up, and the one in the most trouble.
--
-- The lag of a stream is a subtraction, from where the log of each partition ends; deliveries and dead letters are
-- counted up to a limit. So it costs the same however many events there are.
-- Parameters: consumer_ids (null for all); most (dead letters); most_pending (deliveries); topic_ids, partitions, ends (arrays of one length: the last
-- number of each partition, and under partition -1 the last id of the topic). Parts: lanes, state.
-- Relies on: what lanes.sql does, django_events_deadletter (consumer_id, event_id).
WITH p AS MATERIALIZED (
    {lanes}
),
same_state AS (
    SELECT
        lane.consumer_id, lane.rank,
        count(*) AS partitions,
        min(lane.partition) AS partition,
        sum(lane.events) AS lag,
        bool_or(lane.more) AS more_lag,
        sum(lane.handled) AS handled,
        sum(lane.failed) AS failed,
        sum(lane.discarded) AS discarded,
        sum(lane.dead_lettered) AS dead_lettered,
        max(lane.served_at) AS served_at
    FROM (
        SELECT
            p.*,
            array_position(ARRAY['stopped', 'retrying', 'lost', 'paused', 'handling', 'idle'], {state}) AS rank
        FROM p
        JOIN django_events_consumer AS c ON c.id = p.consumer_id
    ) AS lane
    GROUP BY lane.consumer_id, lane.rank
),
total AS (
    SELECT
        consumer_id,
        min(rank) AS rank,
        (array_agg(partitions ORDER BY rank))[1] AS in_state,
        (array_agg(partition ORDER BY rank))[1] AS partition,
        sum(partitions)::bigint AS partitions,
        sum(lag)::bigint AS lag,
        bool_or(more_lag) AS more_lag,
        sum(handled)::bigint AS handled,
        sum(failed)::bigint AS failed,
        sum(discarded)::bigint AS discarded,
        sum(dead_lettered)::bigint AS dead_lettered,
        max(served_at) AS served_at
    FROM same_state
    GROUP BY consumer_id
)
SELECT
    c.name, t.name, c.mode,
    (ARRAY['stopped', 'retrying', 'lost', 'paused', 'handling', 'idle'])[total.rank] AS state,
    total.in_state, total.partitions, total.lag, total.more_lag,
    total.handled, total.failed, total.discarded, total.dead_lettered,
    least(dead.letters, %(most)s) AS dead_letters, dead.letters > %(most)s AS more_dead_letters,
    p.partition, p.position, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    total.served_at, clock_timestamp() - greatest(total.served_at, p.retry_at) AS unserved_for, c.paused_at,
    c.id, c.topic_id
FROM total
JOIN p ON p.consumer_id = total.consumer_id AND p.partition = total.partition
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
