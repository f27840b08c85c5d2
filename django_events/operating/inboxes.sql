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
-- Bring an inbox in step with its declaration: its topic, and its source if it has no position yet. If one of them was another
-- one, answers with the source that it has now, and whether the topic has changed.
--
-- Parameters: name, topic_id, source.
-- Relies on: the unique index of django_events_inbox (name).
WITH former AS (
    SELECT f.id, f.topic_id
    FROM django_events_inbox AS f
    WHERE f.name = %(name)s AND (f.topic_id, f.source) IS DISTINCT FROM (%(topic_id)s, %(source)s)
    FOR UPDATE
)
UPDATE django_events_inbox AS i
SET topic_id = %(topic_id)s, source = CASE WHEN i.position IS NULL THEN %(source)s ELSE i.source END
FROM former
WHERE i.id = former.id
RETURNING i.source, former.topic_id <> i.topic_id


-- name: mirror
-- Note which topics are mirrors, and of what; answers with those for which that is new.
--
-- A topic that isn't declared as a mirror may be one for another project, or for an older deploy. It is one as long as it
-- has an inbox, unless that is declared without keep_ids.
-- Parameters: topics (names), sources (arrays of one length), publishing (names of inboxes declared without keep_ids).
-- Relies on: nothing but the tables of topics and of inboxes, which are small.
UPDATE django_events_topic AS t
SET mirror_of = coalesce(declared.source, '')
FROM django_events_topic AS known
LEFT JOIN unnest(%(topics)s::text[], %(sources)s::text[]) AS declared (topic, source) ON declared.topic = known.name
WHERE t.id = known.id AND t.mirror_of <> coalesce(declared.source, '')
    AND (
        declared.source IS NOT NULL
        OR NOT EXISTS (
            SELECT FROM django_events_inbox AS i
            WHERE i.topic_id = known.id AND i.name <> ALL (%(publishing)s::text[])
        )
    )
RETURNING t.name, t.mirror_of
