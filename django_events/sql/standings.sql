-- How consumers stand on their topics: the partitions of each added up, and the one in the most trouble.
--
-- The lag of a stream is a subtraction, from where the log of each partition ends; deliveries and dead letters are
-- counted up to a limit. So it costs the same however many events there are.
-- The worst partition is found by one number: its place in the list of states, and the partition behind it.
-- Parameters: consumer_ids (null for all); most (dead letters); most_pending (deliveries); topic_ids, partitions, ends (arrays of one length: the last
-- number of each partition, and under partition -1 the last id of the topic). Parts: lanes, state.
-- Relies on: what lanes.sql does, django_events_deadletter (consumer_id, event_id).
WITH p AS MATERIALIZED (
    SELECT
        lane.*,
        array_position(ARRAY['stopped', 'retrying', 'lost', 'paused', 'handling', 'idle'], lane.state) AS rank
    FROM (
        SELECT p.*, {state} AS state
        FROM ({lanes}) AS p
        JOIN django_events_consumer AS c ON c.id = p.consumer_id
    ) AS lane
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
        sum(p.discarded)::bigint AS discarded,
        sum(p.dead_lettered)::bigint AS dead_lettered,
        max(p.served_at) AS served_at
    FROM p
    GROUP BY p.consumer_id
)
SELECT
    c.name, t.name, c.mode,
    p.state, total.in_states[p.rank] AS in_state, total.partitions, total.lag, total.more_lag,
    total.handled, total.failed, total.discarded, total.dead_lettered,
    least(dead.letters, %(most)s) AS dead_letters, dead.letters > %(most)s AS more_dead_letters,
    p.partition, p.position, p.attempted, p.attempts, p.retry_at, p.error, p.holder,
    total.served_at, clock_timestamp() - greatest(total.served_at, p.retry_at) AS unserved_for, c.paused_at,
    c.id, c.topic_id
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
