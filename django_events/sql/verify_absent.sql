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
