-- Publish many events: the id of each is its place in the order of the rows.
COPY django_events_bufferedevent (topic_id, value, type, key, body, metadata, partition) FROM STDIN
