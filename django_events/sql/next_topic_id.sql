-- The id of a new topic: never one that a row or a log has already, also after a flush that
-- started the sequence anew.
--
-- Parameters: logs (the ids of the logs that are there).
-- Relies on: the primary key of django_events_topic.
SELECT setval(
    pg_get_serial_sequence('django_events_topic', 'id'),
    greatest(
        nextval(pg_get_serial_sequence('django_events_topic', 'id')),
        (SELECT max(id) + 1 FROM django_events_topic),
        (SELECT max(id) + 1 FROM unnest(%(logs)s::bigint[]) AS log (id))
    )
)
