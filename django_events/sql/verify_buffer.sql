-- What of a topic waits in the buffer: the last ticket, the last ticket of the sequence if this role may read it, and how
-- many have a partition that the topic doesn't have, no more than are looked at.
--
-- The sequence is read behind the rows, and only rises. Parameters: topic_id, partitions, most (rows to look at).
-- Relies on: the primary key of the buffer (topic_id, id).
SELECT
    last.id,
    CASE
        WHEN has_sequence_privilege(pg_get_serial_sequence('django_events_bufferedevent', 'id'), 'SELECT, USAGE')
            THEN coalesce(pg_sequence_last_value(pg_get_serial_sequence('django_events_bufferedevent', 'id')::regclass), 0)
    END,
    (
        SELECT count(*)
        FROM (
            SELECT b.partition
            FROM django_events_bufferedevent AS b
            WHERE b.topic_id = %(topic_id)s
            ORDER BY b.id
            LIMIT %(most)s
        ) AS oldest
        WHERE oldest.partition NOT BETWEEN 0 AND %(partitions)s - 1
    )
FROM (
    SELECT b.id
    FROM django_events_bufferedevent AS b
    WHERE b.topic_id = %(topic_id)s
    ORDER BY b.id DESC
    LIMIT 1
) AS last
