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
