-- name: note_served
-- Note that subscriptions are served now, where that was not noted lately.
--
-- A row that another session has locked is left out: it is served by that one, or it is being removed.
-- Parameters: consumer_ids. Answers with the positions in which it was noted.
-- Relies on: the primary keys of django_events_consumer and django_events_position, django_events_position
-- (consumer_id, partition).
UPDATE django_events_position
SET served_at = clock_timestamp()
WHERE id = ANY(
    ARRAY(
        SELECT p.id
        FROM django_events_position AS p
        JOIN django_events_consumer AS c ON c.id = p.consumer_id
        WHERE p.consumer_id = ANY(%(consumer_ids)s::int[])
            AND p.partition = -1
            AND c.expires_after IS NOT NULL
            AND (p.served_at IS NULL OR p.served_at < clock_timestamp() - least(c.expires_after / 10, interval '1 minute'))
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
)
RETURNING id


-- name: start_anew
-- Count from now on for subscriptions that nothing could serve, because nothing ran here for half as long as they live.
--
-- The database was away, or is a dump that was restored: that maintenance didn't run shows it. Rows that another session has
-- locked are served.
-- Parameters: step (of maintenance). Answers with the positions in which it was noted.
-- Relies on: the primary keys of django_events_maintenancestep and django_events_position. All consumers are read, once a minute.
UPDATE django_events_position
SET served_at = clock_timestamp()
WHERE id = ANY(
    ARRAY(
        SELECT p.id
        FROM django_events_maintenancestep AS s
        JOIN django_events_consumer AS c ON s.finished_at < clock_timestamp() - c.expires_after / 2
        JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
        WHERE s.name = %(step)s AND c.subscribed
        FOR NO KEY UPDATE OF p SKIP LOCKED
    )
)
RETURNING id


-- name: idle
-- The subscriptions that nothing has served for as long as they live without, and for how long that is at least.
--
-- As signs of life are not noted each time, as much longer is waited.
-- Parameters: consumer_ids (or null for all). Answers with ids of consumers, those first that are idle for longest.
-- Relies on: django_events_position (consumer_id, partition). All consumers are read, once a minute.
SELECT c.id, clock_timestamp() - coalesce(p.served_at, c.registered_at)
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.subscribed
    AND c.expires_after IS NOT NULL
    AND (%(consumer_ids)s::int[] IS NULL OR c.id = ANY(%(consumer_ids)s::int[]))
    AND coalesce(p.served_at, c.registered_at)
        < clock_timestamp() - c.expires_after - least(c.expires_after / 10, interval '1 minute')
ORDER BY coalesce(p.served_at, c.registered_at)
