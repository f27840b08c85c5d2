-- name: chosen
-- Which of the chosen events `e` a consumer may handle again.
--
-- Parameters: consumer_id, most. Literals: topic_id. Identifiers: log. Parts: chosen, match (whether an event is for the
-- consumer), passed.
-- Answers, by id, with whether the event is for the consumer, whether it was passed, and whether it is to be handled again
-- already.
-- Relies on: the primary key of the log, or its timeline where keys are chosen; django_events_deadletter (consumer_id,
-- event_id), django_events_position (consumer_id, partition), the primary key of django_events_delivery.
SELECT e.id, {match}, {passed}, coalesce(letter.redrive_at IS NOT NULL, false)
FROM {log} AS e
JOIN django_events_consumer AS c ON c.id = %(consumer_id)s
LEFT JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition IN (-1, e.partition)
LEFT JOIN django_events_deadletter AS letter ON letter.consumer_id = c.id AND letter.event_id = e.id
WHERE e.topic_id = {topic_id} AND {chosen}
ORDER BY e.id
LIMIT %(most)s


-- name: passed_by_stream
-- Part of `chosen`: whether a stream consumer has passed an event. It has no position in a partition that it has passed
-- to the end, and that the topic doesn't have any more.
--
-- Relies on: nothing but its rows.
coalesce(e.id <= p.position, true)


-- name: passed_by_queue
-- Part of `chosen`: whether a queue consumer has passed an event: it had a delivery, and has none any more.
--
-- Relies on: the primary key of django_events_delivery.
(
    (c.live OR e.id <= c.filled_until)
    AND NOT EXISTS (SELECT FROM django_events_delivery AS d WHERE d.consumer_id = c.id AND d.event_id = e.id)
)


-- name: of_these
-- Part of a condition on an event `e`: it is one of these.
--
-- Literals: ids.
-- Relies on: the primary key of the log.
e.id = ANY({ids}::bigint[])


-- name: from_id
-- Part of a condition on an event `e`: it is not before this one.
--
-- Literals: first.
-- Relies on: the primary key of the log.
e.id >= {first}


-- name: to_id
-- Part of a condition on an event `e`: it is not behind this one.
--
-- Literals: last.
-- Relies on: the primary key of the log.
e.id <= {last}


-- name: replay
-- Copy events of the log into the dead letters of a consumer, to be handled again; a dead letter that is there is
-- redriven.
--
-- Literals: topic_id, ids. Identifiers: log. Parameters: consumer_id, error, fingerprint. Answers with the ids of the dead letters.
-- Relies on: the primary key of the log, django_events_deadletter (consumer_id, event_id).
INSERT INTO django_events_deadletter AS letter (
    consumer_id, event_id, {copied_columns}, attempts, error, traceback, fingerprint, redrive_at
)
SELECT
    %(consumer_id)s, {event_columns of e}, 0, %(error)s, '', %(fingerprint)s, clock_timestamp()
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = ANY({ids}::bigint[])
ON CONFLICT (consumer_id, event_id) DO UPDATE
SET redrive_at = clock_timestamp(), attempts = 0
RETURNING letter.id
