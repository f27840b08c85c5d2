-- name: verify_deliveries
-- The deliveries of a topic's consumers that can't be.
--
-- `beyond`: of an event that the log never had. `dead`: of one that is a dead letter and was not asked for again.
-- `passed`: at or below the position, where no worker looks. `unleased`: under a lease that doesn't exist. `unnamed`: under a
-- lease that doesn't name it, so that no worker takes it over. `removed` is none of their fault: the log dropped the event.
-- What leases name is unfolded once: asked for each delivery, a long list is read as often as it has events. The join
-- with it is a full one, which is never planned as a loop within a loop; what is named and was settled has no delivery.
-- Parameters: topic_id, last_id, id_floor, most. Answers with how many there are of the fault, the fault, consumer, event,
-- and the position.
-- Relies on: the primary keys of django_events_delivery and django_events_deliverylease, django_events_deadletter
-- (consumer_id, event_id), django_events_position (consumer_id, partition).
WITH named AS (
    SELECT l.token, event.id
    FROM django_events_consumer AS c
    JOIN django_events_deliverylease AS l ON l.consumer_id = c.id
    CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE WHEN jsonb_typeof(l.event_ids) = 'array' THEN l.event_ids ELSE '[]' END
    ) AS event (id)
    WHERE c.topic_id = %(topic_id)s
),
there AS (
    SELECT
        d.consumer_id, d.event_id, d.token, p.position, l.token AS lease,
        letter.id AS letter, letter.redrive_at
    FROM django_events_consumer AS c
    JOIN django_events_delivery AS d ON d.consumer_id = c.id
    LEFT JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    LEFT JOIN django_events_deliverylease AS l ON l.token = d.token AND l.consumer_id = d.consumer_id
    LEFT JOIN django_events_deadletter AS letter ON letter.consumer_id = d.consumer_id AND letter.event_id = d.event_id
    WHERE c.topic_id = %(topic_id)s
),
looked AS (
    SELECT
        there.consumer_id, there.event_id, there.position,
        CASE
            WHEN there.event_id NOT BETWEEN 1 AND %(last_id)s THEN 'beyond'
            WHEN there.letter IS NOT NULL AND there.redrive_at IS NULL THEN 'dead'
            WHEN there.event_id <= there.position THEN 'passed'
            WHEN there.token IS NOT NULL AND there.lease IS NULL THEN 'unleased'
            WHEN there.token IS NOT NULL AND named.token IS NULL THEN 'unnamed'
            WHEN there.event_id <= %(id_floor)s AND there.letter IS NULL THEN 'removed'
        END AS fault
    FROM there
    FULL JOIN named ON named.token = there.token AND named.id = there.event_id::text
),
wrong AS (
    SELECT
        looked.*,
        count(*) OVER (PARTITION BY consumer_id, fault) AS total,
        row_number() OVER (PARTITION BY consumer_id, fault ORDER BY event_id) AS rank
    FROM looked
    WHERE fault IS NOT NULL
)
SELECT wrong.total, wrong.fault, c.name, wrong.event_id, wrong.position
FROM wrong
JOIN django_events_consumer AS c ON c.id = wrong.consumer_id
WHERE wrong.rank <= %(most)s
ORDER BY c.name, wrong.fault, wrong.event_id


-- name: verify_leases
-- The leases of deliveries of a topic's consumers that name events which the log never had, or of consumers that are no
-- queues; and whose time has been over for a while, with nothing under them.
--
-- A lease keeps the names of what was settled since, so one without deliveries may be right while its time goes on.
-- Parameters: topic_id, last_id, most. Answers with how many there are of the fault, the fault, consumer, token, holder,
-- and an event, if it is about one.
-- Relies on: django_events_deliverylease (consumer_id), the primary key of django_events_delivery.
WITH looked AS (
    SELECT
        c.name, l.token, l.holder, strange.id,
        CASE
            WHEN c.mode <> 'queue' OR strange.id IS NOT NULL OR jsonb_typeof(l.event_ids) <> 'array' THEN 'strange'
            WHEN l.leased_until < clock_timestamp() - interval '1 hour' AND NOT EXISTS (
                SELECT
                FROM jsonb_array_elements_text(l.event_ids) AS event (id)
                JOIN django_events_delivery AS d
                    ON d.consumer_id = l.consumer_id AND d.event_id = event.id::bigint AND d.token = l.token
            ) THEN 'empty'
        END AS fault
    FROM django_events_consumer AS c
    JOIN django_events_deliverylease AS l ON l.consumer_id = c.id
    LEFT JOIN LATERAL (
        SELECT coalesce(event.id, 'null') AS id
        FROM jsonb_array_elements_text(
            CASE WHEN jsonb_typeof(l.event_ids) = 'array' THEN l.event_ids ELSE '[]' END
        ) AS event (id)
        WHERE event.id IS NULL OR event.id !~ '^[1-9][0-9]*$' OR event.id::numeric > %(last_id)s
        LIMIT 1
    ) AS strange ON true
    WHERE c.topic_id = %(topic_id)s
),
ranked AS (
    SELECT
        looked.*,
        count(*) OVER (PARTITION BY fault) AS total,
        row_number() OVER (PARTITION BY fault ORDER BY name, token) AS rank
    FROM looked
    WHERE fault IS NOT NULL
)
SELECT total, fault, name, token, holder, id
FROM ranked
WHERE rank <= %(most)s
ORDER BY fault, rank


-- name: verify_absent
-- The events of a range of the log that a queue consumer never got: they match its filter, and are neither a delivery nor a
-- dead letter, and its history has nothing of them.
--
-- Only where the history tells: of consumers that keep one, since its filter and its history are what they are, for as
-- long as it is kept; not before the place where the consumer was moved to by hand, nor up to what retention took from
-- it. What was erased is left out: the filter would not match it any more. A minute is for clocks that were set back.
-- Parameters: most. Literals: consumer_id, topic_id, after, upper. Identifiers: log. Parts: match (about `e`).
-- Answers with how many there are, and the event.
-- Relies on: the primary keys of the log, of django_events_consumer, django_events_delivery, django_events_pastdelivery,
-- django_events_deadletter (consumer_id, event_id), django_events_intervention (consumer, at).
WITH given AS MATERIALIZED (
    SELECT
        CASE WHEN c.live THEN {upper} ELSE least(c.filled_until, {upper}) END AS until,
        greatest(c.changed_at, clock_timestamp() - c.history) + interval '1 minute' AS since,
        coalesce(
            (
                SELECT max(
                    CASE i.action WHEN 'expire' THEN (i.details ->> 'last')::bigint ELSE (i.details ->> 'after')::bigint - 1 END
                )
                FROM django_events_intervention AS i
                WHERE i.consumer = c.name
                    AND i.topic = t.name
                    AND i.at >= c.registered_at
                    AND i.action IN ('expire', 'rewind')
            ),
            0
        ) AS moved_to
    FROM django_events_consumer AS c
    JOIN django_events_topic AS t ON t.id = c.topic_id
    WHERE c.id = {consumer_id} AND c.history IS NOT NULL
),
absent AS MATERIALIZED (
    SELECT e.id
    FROM {log} AS e
    CROSS JOIN given
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
        AND e.id > given.moved_to
        AND e.id <= given.until
        AND e.logged_at > given.since
        AND (e.value IS NOT NULL OR e.body IS NOT NULL)
        AND NOT EXISTS (
            SELECT FROM django_events_delivery AS d
            WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {upper} AND d.event_id = e.id
        )
        AND NOT EXISTS (
            SELECT FROM django_events_pastdelivery AS past
            WHERE past.consumer_id = {consumer_id}
                AND past.event_id > {after} AND past.event_id <= {upper}
                AND past.event_id = e.id
        )
        AND NOT EXISTS (
            SELECT FROM django_events_deadletter AS d
            WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {upper} AND d.event_id = e.id
        )
)
SELECT count(*) OVER (), e.id
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    AND e.id IN (SELECT absent.id FROM absent)
    AND {match}
ORDER BY e.id
LIMIT %(most)s


-- name: verify_history
-- What the history of a topic's queue consumers says of events that the log never had.
--
-- Parameters: topic_id, last_id, most. Answers with how many there are, consumer and event.
-- Relies on: the primary key of django_events_pastdelivery.
SELECT count(*) OVER (), c.name, past.event_id
FROM django_events_consumer AS c
JOIN django_events_pastdelivery AS past ON past.consumer_id = c.id AND past.event_id > %(last_id)s
WHERE c.topic_id = %(topic_id)s
ORDER BY c.name, past.event_id
LIMIT %(most)s


-- name: verify_keys
-- The deliveries of a range of an ordered queue whose key is not that of their event.
--
-- While a key is erased, and after an erasure that was interrupted, the key itself stands in one of both, and what
-- stands in its place in the other. What the log has dropped meanwhile is not looked at.
-- Parameters: most, erased (a regular expression of what stands in the place of an erased key). Literals: consumer_id,
-- topic_id, after, upper. Identifiers: log. Answers with how many there are, the event, and both keys.
-- Relies on: the primary keys of django_events_delivery, of django_events_consumer and of the log.
SELECT count(*) OVER (), d.event_id, d.key, e.key
FROM django_events_consumer AS c
JOIN django_events_delivery AS d ON d.consumer_id = c.id
JOIN {log} AS e ON e.id = d.event_id
WHERE c.id = {consumer_id}
    AND c.ordered
    AND d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {upper}
    AND e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper}
    AND d.key IS DISTINCT FROM e.key
    AND NOT (d.key IS NOT NULL AND e.key IS NOT NULL AND (d.key ~ %(erased)s OR e.key ~ %(erased)s))
ORDER BY d.event_id
LIMIT %(most)s


-- name: next_deliveries
-- Up to which event the next deliveries of a queue consumer go.
--
-- Literals: consumer_id, after, last_id, most. Answers with null if there are no more.
-- Relies on: the primary key of django_events_delivery.
SELECT max(next.event_id) FROM (
    SELECT d.event_id
    FROM django_events_delivery AS d
    WHERE d.consumer_id = {consumer_id} AND d.event_id > {after} AND d.event_id <= {last_id}
    ORDER BY d.event_id
    LIMIT {most}
) AS next
