-- Publish the rows that a statement inserted or deleted: in the function of a trigger, which declares the variables.
--
-- Identifiers: rows (the transition table). Parts: type, key, shown (columns), condition.
INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
SELECT django_events_topic, {type}, {key}, to_jsonb(shown), django_events_metadata
FROM {rows} AS r
CROSS JOIN LATERAL (SELECT {shown}) AS shown
WHERE {condition}
