-- Part of a condition on a dead letter `d`: it is to be handled again now, in the partition of a position `p`.
--
-- An older dead letter of the same key comes first, also if nobody asked for it.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL, and
-- (consumer_id, key, event_id).
d.consumer_id = p.consumer_id
AND d.redrive_at <= clock_timestamp()
AND (p.partition = -1 OR d.partition = p.partition)
AND NOT EXISTS (
    SELECT FROM django_events_deadletter AS older
    WHERE older.consumer_id = d.consumer_id AND older.key = d.key AND older.event_id < d.event_id
)
