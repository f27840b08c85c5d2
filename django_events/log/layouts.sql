-- name: set_barrier
-- Have the streams that read the partitions of a topic by themselves read nothing by a new layout for now, and give them
-- positions in its partitions.
--
-- A consumer that is further behind stands at the end of an earlier layout already. Under the topic's head, and in the
-- transaction that adds the layout. Parameters: topic_id, before (the index of the layout that ends), first_id,
-- partitions, numbers (arrays of one length: the numbers that the partitions have reached).
-- Relies on: django_events_consumer (topic_id), django_events_position (consumer_id, partition).
WITH reading AS MATERIALIZED (
    SELECT p.id
    FROM django_events_position AS p
    JOIN django_events_consumer AS c ON c.id = p.consumer_id
    WHERE c.topic_id = %(topic_id)s AND p.layout = %(before)s AND p.barrier IS NULL
    ORDER BY p.consumer_id, p.partition
    FOR UPDATE OF p
),
standing AS (
    UPDATE django_events_position AS p
    SET barrier = %(first_id)s
    FROM reading
    WHERE p.id = reading.id
    RETURNING p.consumer_id
),
added AS (
    INSERT INTO django_events_position (
        consumer_id, partition, position, number, handled, failed, ignored, dead_lettered, attempts, careful_until, error, holder
    )
    SELECT c.id, part.partition, %(first_id)s - 1, part.number, 0, 0, 0, 0, 0, 0, '', ''
    FROM django_events_consumer AS c
    CROSS JOIN unnest(%(partitions)s::int[], %(numbers)s::bigint[]) AS part (partition, number)
    WHERE c.topic_id = %(topic_id)s AND c.partitioned AND c.mode = 'stream'
    ON CONFLICT (consumer_id, partition) DO NOTHING
    RETURNING consumer_id
)
SELECT consumer_id FROM standing UNION SELECT consumer_id FROM added
