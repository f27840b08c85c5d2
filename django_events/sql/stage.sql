-- Stage events of a task of Spark, in the order of the rows.
COPY django_events_stagedevent (attempt, topic_id, partition, type, key, value, body, metadata) FROM STDIN
