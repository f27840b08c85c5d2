-- name: left_before_barrier
-- The positions of a consumer that stand, or will, at a barrier: the barrier, how many events each has left before it, and
-- what goes on there.
--
-- Numbers have no gaps, so how many are left is a subtraction. Parameters: consumer_id. Literals: is_undivided (whether
-- the topic has always had one partition). Identifiers: log. Parts: state.
-- Relies on: django_events_position (consumer_id, partition), (partition, id) of the log.
SELECT
    p.barrier,
    p.partition,
    greatest(
        CASE
            WHEN p.partition = -1 OR {is_undivided} THEN p.barrier - 1 - p.position
            ELSE (
                SELECT e.number
                FROM {log} AS e
                WHERE e.partition = p.partition AND e.id < p.barrier
                ORDER BY e.id DESC
                LIMIT 1
            ) - p.number
        END,
        0
    ) AS left_before,
    {state} AS state
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
WHERE p.consumer_id = %(consumer_id)s AND p.barrier IS NOT NULL
ORDER BY p.partition
