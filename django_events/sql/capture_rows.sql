-- Publish the rows that a statement inserted or deleted: in the function of a trigger, which declares the variables.
--
-- A column may be called like anything, so what is named here is named after us.
-- Identifiers: rows (the transition table). Parts: type, key, checked and end (around the value: the function that refuses
-- what no reader makes into text, or nothing where no column may hold it), shown (columns), condition.
INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
SELECT django_events_topic, {type}, {key}, {checked}to_jsonb(django_events_shown){end}, django_events_metadata
FROM {rows} AS r
CROSS JOIN LATERAL (SELECT {shown}) AS django_events_shown
WHERE {condition}
