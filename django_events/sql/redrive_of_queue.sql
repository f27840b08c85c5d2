-- Part of a condition on a dead letter `d` of a queue consumer `c`: it is to be handled again now, and has no delivery.
--
-- In order, an older dead letter of the same key comes first, also if nobody asked for it; and while the key is in
-- somebody's hand, which begins with its oldest delivery, it would be handled beside another event of the key.
-- It is asked for as in claim_ordered.sql, in the order that only the index of keys has.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL and (consumer_id, key,
-- event_id), the primary key of django_events_delivery and (consumer_id, key, event_id) WHERE key IS NOT NULL.
d.consumer_id = c.id
AND d.redrive_at <= clock_timestamp()
AND NOT EXISTS (
    SELECT FROM django_events_delivery AS own WHERE own.consumer_id = d.consumer_id AND own.event_id = d.event_id
)
AND NOT (
    c.ordered AND (
        EXISTS (
            SELECT FROM django_events_deadletter AS older
            WHERE older.consumer_id = d.consumer_id AND older.key = d.key AND older.event_id < d.event_id
        )
        OR (
            SELECT CASE WHEN oldest.key = d.key THEN oldest.token END
            FROM django_events_delivery AS oldest
            WHERE oldest.consumer_id = d.consumer_id
                AND oldest.key IS NOT NULL
                AND (oldest.key, oldest.event_id) > (
                    d.key,
                    (
                        SELECT own.position
                        FROM django_events_position AS own
                        WHERE own.consumer_id = d.consumer_id AND own.partition = -1
                    )
                )
            ORDER BY oldest.key, oldest.event_id
            LIMIT 1
        ) IS NOT NULL
    )
)
