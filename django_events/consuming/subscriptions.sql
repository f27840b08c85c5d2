-- name: redrive_due
-- Part of a condition on a dead letter `d`: it is to be handled again now, in the partition of a position `p`.
--
-- An older dead letter of the same key comes first, also if it isn't to be redriven.
-- Parts: its_partition.
-- Relies on: django_events_deadletter (consumer_id, event_id) WHERE redrive_at IS NOT NULL, and
-- (consumer_id, key, event_id).
d.consumer_id = p.consumer_id
AND d.redrive_at <= clock_timestamp()
AND (p.partition = -1 OR p.partition = {its_partition})
AND NOT EXISTS (
    SELECT FROM django_events_deadletter AS older
    WHERE older.consumer_id = d.consumer_id AND older.key = d.key AND older.event_id < d.event_id
)


-- name: partition_by_layout
-- Part of an expression on a dead letter `d` and a position `p`: the partition of its key in the layout that `p` is read by.
--
-- So it is handled where other events of its key are handled now. Literals: first_id, partitions (of the layout).
-- Relies on: nothing, it is an expression.
CASE
        WHEN d.event_id >= {first_id} AND (p.barrier IS NULL OR d.event_id < p.barrier) THEN d.partition
        WHEN d.key IS NULL THEN mod(d.partition, {partitions})
        ELSE mod(hashtextextended(d.key, 0) & 9223372036854775807, {partitions})::int
    END
