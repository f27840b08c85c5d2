-- Part of a claim of deliveries: the queue consumer, where it begins to look, and the last that may be claimed.
--
-- No row where nothing may be claimed: while it is paused, held or stopped, without enter.sql before, or if something
-- was taken over under this token. While it is not live, only what it is filled with may be claimed: what came when it
-- was live may be behind that.
-- Parameters: consumer_id, token.
-- Relies on: the primary keys of django_events_consumer and django_events_deliverylease, django_events_position
-- (consumer_id, partition).
SELECT c.id, p.position, CASE WHEN c.live THEN 9223372036854775807 ELSE c.filled_until END AS upper
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
WHERE c.id = %(consumer_id)s
    AND c.paused_at IS NULL
    AND (c.held_until IS NULL OR c.held_until <= clock_timestamp())
    AND p.stopped_at IS NULL
    AND current_setting('django_events.claims', true) = %(consumer_id)s::text
    AND NOT EXISTS (SELECT FROM django_events_deliverylease AS mine WHERE mine.token = %(token)s)
