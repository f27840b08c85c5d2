-- Part of a FROM: positions with what goes on in them. Of a queue consumer that is told by its deliveries and hands.
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
    p.handled, p.failed, p.discarded, p.dead_lettered, p.stopped_at, p.served_at,
    p.attempted, p.attempts, p.retry_at, p.error, p.token, p.leased_until, p.holder,
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
    p.handled, p.failed, p.discarded, p.dead_lettered, p.stopped_at, p.served_at,
    coalesce(waiting.event_id, p.attempted),
    coalesce(waiting.attempts, p.attempts),
    coalesce(waiting.visible_at, p.retry_at),
    CASE WHEN p.error = '' THEN coalesce(waiting.error, '') ELSE p.error END,
    coalesce(hand.token, p.token),
    coalesce(hand.leased_until, p.leased_until),
    coalesce(hand.holder, p.holder),
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
) AS hand ON true
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
