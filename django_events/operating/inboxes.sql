-- name: make
-- Register an inbox, if there is none of that name; answers with a row if it is new.
--
-- Parameters: name, topic_id, source, start.
-- Relies on: the unique index of django_events_inbox (name).
INSERT INTO django_events_inbox (name, topic_id, source, start)
VALUES (%(name)s, %(topic_id)s, %(source)s, %(start)s)
ON CONFLICT (name) DO NOTHING
RETURNING id


-- name: adapt
-- Bring an inbox in step with its declaration; answers with a row if its topic or its source is another one.
--
-- Parameters: name, topic_id, source.
-- Relies on: the unique index of django_events_inbox (name).
UPDATE django_events_inbox
SET topic_id = %(topic_id)s, source = %(source)s
WHERE name = %(name)s AND (topic_id, source) IS DISTINCT FROM (%(topic_id)s, %(source)s)
RETURNING id
