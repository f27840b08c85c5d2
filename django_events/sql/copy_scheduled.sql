-- Schedule many events: those of one time are published in the order of the rows.
COPY django_events_scheduledevent (topic_id, value, type, key, body, metadata, partition, publish_at) FROM STDIN
