-- name: quarantine
-- Have a queue consumer stop, whose filter fails on an event that comes into the log: it isn't live any more.
--
-- Its workers find that event when it is resumed. In a transaction that holds the topic's head, if it is live.
-- Parameters: consumer_id, last_id (of the log, before that event; null where it was being filled, if it still is),
-- error.
-- Relies on: the primary key of django_events_consumer, django_events_position (consumer_id, partition).
WITH stopped AS (
    UPDATE django_events_consumer
    SET live = false, filled_until = CASE WHEN live THEN %(last_id)s ELSE filled_until END
    WHERE id = %(consumer_id)s AND (%(last_id)s::bigint IS NOT NULL OR NOT live)
    RETURNING id
)
UPDATE django_events_position AS p
SET stopped_at = clock_timestamp(), error = %(error)s
FROM stopped
WHERE p.consumer_id = stopped.id AND p.partition = -1
RETURNING p.id


-- name: live_consumers
-- The queue consumers of some topics that get a delivery with each event.
--
-- Parameters: topic_ids.
-- Relies on: django_events_consumer (topic_id) WHERE live, the primary key of django_events_topic.
SELECT c.id, c.topic_id, t.name, c.name
FROM django_events_consumer AS c
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE c.live AND c.topic_id = ANY(%(topic_ids)s::int[])
ORDER BY c.id


-- name: only
-- Leave all queue consumers but these out, when events come into the log, until the transaction or savepoint ends.
--
-- Parameters: consumer_ids (0 is none).
-- Relies on: `deliver`.
SELECT set_config('django_events.only', %(consumer_ids)s::int[]::text, true)
