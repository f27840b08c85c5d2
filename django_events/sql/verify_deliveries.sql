-- The deliveries of a topic's consumers that can't be.
--
-- `beyond`: of an event that the log never had. `dead`: of one that is a dead letter and nobody asked for again.
-- `passed`: at or below the position, where nobody looks. `unleased`: in a hand that nobody has. `unnamed`: in a hand that
-- doesn't know of it, so that nobody takes it over. `removed` is none of their fault: the log dropped the event.
-- Parameters: topic_id, last_id, id_floor, most. Answers with how many there are of the fault, the fault, consumer, event,
-- and the position.
-- Relies on: the primary keys of django_events_delivery and django_events_deliverylease, django_events_deadletter
-- (consumer_id, event_id), django_events_position (consumer_id, partition).
WITH looked AS (
    SELECT
        d.consumer_id, d.event_id, p.position,
        CASE
            WHEN d.event_id NOT BETWEEN 1 AND %(last_id)s THEN 'beyond'
            WHEN letter.id IS NOT NULL AND letter.redrive_at IS NULL THEN 'dead'
            WHEN d.event_id <= p.position THEN 'passed'
            WHEN d.token IS NOT NULL AND l.token IS NULL THEN 'unleased'
            WHEN d.token IS NOT NULL AND NOT l.event_ids @> to_jsonb(d.event_id) THEN 'unnamed'
            WHEN d.event_id <= %(id_floor)s AND letter.id IS NULL THEN 'removed'
        END AS fault
    FROM django_events_consumer AS c
    JOIN django_events_delivery AS d ON d.consumer_id = c.id
    LEFT JOIN django_events_position AS p ON p.consumer_id = c.id AND p.partition = -1
    LEFT JOIN django_events_deliverylease AS l ON l.token = d.token AND l.consumer_id = d.consumer_id
    LEFT JOIN django_events_deadletter AS letter ON letter.consumer_id = d.consumer_id AND letter.event_id = d.event_id
    WHERE c.topic_id = %(topic_id)s
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
