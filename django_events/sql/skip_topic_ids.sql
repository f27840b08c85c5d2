-- Never give a new topic an id that a row or a log has already.
SELECT setval(
    pg_get_serial_sequence('django_events_topic', 'id'),
    greatest((SELECT max(id) FROM django_events_topic), nextval(pg_get_serial_sequence('django_events_topic', 'id')))
)
