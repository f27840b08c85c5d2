-- name: due_now
-- Let scheduled events be due, a microsecond after each other, in the order in which they would have been published.
--
-- What is due already stays where it is. The caller has the rows locked.
-- Parameters: tickets.
-- Relies on: the primary key of django_events_scheduledevent.
UPDATE django_events_scheduledevent AS s
SET publish_at = chosen.now - chosen.behind * interval '1 microsecond'
FROM (
    SELECT c.id, c.publish_at, statement_timestamp() AS now, row_number() OVER (ORDER BY c.publish_at DESC, c.id DESC) AS behind
    FROM django_events_scheduledevent AS c
    WHERE c.id = ANY(%(tickets)s::bigint[])
) AS chosen
WHERE s.id = chosen.id AND chosen.publish_at > chosen.now
RETURNING s.id
