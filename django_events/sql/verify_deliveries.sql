-- The deliveries of a topic's consumers that can't be.
--
-- `beyond`: of an event that the log never had. `dead`: of one that is a dead letter and nobody asked for again.
-- `passed`: at or below the position, where nobody looks. `unleased`: in a hand that nobody has. `unnamed`: in a hand that
-- doesn't know of it, so that nobody takes it over. `removed` is none of their fault: the log dropped the event.
-- What hands name is unfolded once: asked for each delivery, a large hand is read as often as it has events. The join
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
