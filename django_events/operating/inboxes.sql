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


-- name: mirror
-- Note which topics are mirrors, and of what; answers with those for which that is new.
--
-- Parameters: topics (names), sources (arrays of one length).
-- Relies on: nothing but the table of topics, which is small.
UPDATE django_events_topic AS t
SET mirror_of = coalesce(declared.source, '')
FROM django_events_topic AS known
LEFT JOIN unnest(%(topics)s::text[], %(sources)s::text[]) AS declared (topic, source) ON declared.topic = known.name
WHERE t.id = known.id AND t.mirror_of <> coalesce(declared.source, '')
RETURNING t.name, t.mirror_of
