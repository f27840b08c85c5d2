-- name: needs
-- The first event that each consumer of a topic still has to handle, or to look at, of those that have one.
--
-- The position of a quiet partition is far behind though nothing waits there, so its next event is looked for. A queue
-- needs its oldest delivery, which is told by the position from which it looks, and what it is not filled with yet. A
-- consumer whose table is being filled anew needs what isn't folded yet, while a process is at it.
-- Parameters: last_id (of the log), whole (whether the topic has one partition). Literals: topic_id. Identifiers: log.
-- Relies on: django_events_consumer_name (name, topic), django_events_position (consumer_id, partition), the primary
-- key of django_events_delivery, (partition, id) or the primary key of the log, django_events_rebuild (consumer).
SELECT c.id, c.name, c.mode, min(next.event_id)
FROM django_events_consumer AS c
JOIN django_events_position AS p ON p.consumer_id = c.id
CROSS JOIN LATERAL (
    SELECT p.position + 1 AS event_id
    WHERE c.mode <> 'queue' AND (p.partition = -1 OR %(whole)s) AND p.position < %(last_id)s
    UNION ALL
    (
        SELECT e.id FROM {log} AS e
        WHERE c.mode <> 'queue' AND p.partition >= 0 AND NOT %(whole)s AND e.partition = p.partition AND e.id > p.position
        ORDER BY e.id
        LIMIT 1
    )
    UNION ALL
    (
        SELECT d.event_id FROM django_events_delivery AS d
        WHERE c.mode = 'queue' AND d.consumer_id = c.id AND d.event_id > p.position
            AND NOT EXISTS (
                SELECT FROM django_events_deadletter AS copy
                WHERE copy.consumer_id = d.consumer_id AND copy.event_id = d.event_id
            )
        ORDER BY d.event_id
        LIMIT 1
    )
    UNION ALL
    SELECT c.filled_until + 1
    WHERE c.mode = 'queue' AND NOT c.live AND c.filled_until < %(last_id)s
    UNION ALL
    SELECT (r.reached ->> t.name)::bigint + 1
    FROM django_events_rebuild AS r
    JOIN django_events_topic AS t ON t.id = c.topic_id AND t.keep_unread
    WHERE r.consumer = c.name AND r.leased_until > clock_timestamp() AND NOT r.partial
        AND (r.reached ->> t.name)::bigint < %(last_id)s
) AS next
WHERE c.topic_id = {topic_id}
GROUP BY c.id, c.name, c.mode
ORDER BY min(next.event_id), c.name


-- name: pause_retention
-- Let retention drop nothing for a while, or let it go on; answers with until when.
--
-- It waits for a segment that is being dropped in this moment, see `paused`. A pause that is not ended ends by itself.
-- Parameters: period (an interval, or null to let it go on).
-- Relies on: the primary key of django_events_maintenancestep.
INSERT INTO django_events_maintenancestep AS s (name, started_at, holder, result, error, paused_until)
VALUES ('retention', 'epoch', '', jsonb_build_object(), '', clock_timestamp() + %(period)s::interval)
ON CONFLICT (name) DO UPDATE SET paused_until = excluded.paused_until
RETURNING s.paused_until


-- name: paused
-- Until when retention drops nothing; no answer if it may. While it may, no pause begins before this transaction ends.
--
-- The row that is locked is there: it is written before the step runs, by `begin_step`, or by a pause before that.
-- Relies on: the primary key of django_events_maintenancestep.
WITH step AS MATERIALIZED (
    SELECT s.paused_until FROM django_events_maintenancestep AS s WHERE s.name = 'retention' FOR SHARE
)
SELECT step.paused_until FROM step WHERE step.paused_until > clock_timestamp()


-- name: raise_floors
-- Remember up to where retention has removed a topic's events, and the numbers that its partitions had reached there.
--
-- Parameters: topic_id, id_floor, number_floors (a list as JSON).
-- Relies on: the primary key of django_events_topichead.
UPDATE django_events_topichead
SET id_floor = %(id_floor)s, number_floors = %(number_floors)s::jsonb
WHERE topic_id = %(topic_id)s
RETURNING topic_id
