-- name: last
-- The end of one topic's log, and the facts by which its next events are placed.
--
-- Run it after the statement that locked the head: an earlier snapshot could miss the last batch of
-- another writer. The lower bound is what the worker knows to be there: it lets the planner open the
-- newest segments only. A mirror has no end for a transfer: its log has the events of its source only. A log that was a
-- mirror may end with ids that its source no longer had: they count as compacted, and none of them is given to another
-- event.
-- Literals: topic_id, known. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT
    t.id, t.incarnation, t.partitions,
    greatest(t.partitions, (SELECT max((layout ->> 1)::int) FROM jsonb_array_elements(t.layouts) AS layout)) AS most_partitions,
    greatest(head.id_floor, head.compacted_until) AS id_floor,
    ARRAY(SELECT jsonb_array_elements_text(head.number_floors)::bigint) AS number_floors,
    last.id, last.number, last.logged_at::text
FROM django_events_topic AS t
JOIN django_events_topichead AS head ON head.topic_id = t.id
LEFT JOIN (
    SELECT e.id, e.number, e.logged_at
    FROM {log} AS e
    WHERE e.topic_id = {topic_id} AND e.id >= {known}
    ORDER BY e.id DESC
    LIMIT 1
) AS last ON true
WHERE t.id = {topic_id} AND t.mirror_of = ''


-- name: numbers
-- The last number of each partition of a topic, as far as events came after `since`.
--
-- Only for topics of several partitions. The topic isn't named: the planner would rather walk back
-- through the primary key, which is far where a partition is quiet.
-- Literals: partitions, since. Identifiers: log.
-- Relies on: (partition, id) of the log.
SELECT part.partition, last.number
FROM generate_series(0, {partitions} - 1) AS part (partition)
CROSS JOIN LATERAL (
    SELECT e.number
    FROM {log} AS e
    WHERE e.partition = part.partition AND e.id > {since}
    ORDER BY e.id DESC
    LIMIT 1
) AS last


-- name: unchanged
-- Which of these topics are as a transfer knows them: not made anew, no mirror, of as many partitions, and with nothing
-- dropped or compacted behind the last event that it knows: of a log that was a mirror meanwhile, ids behind it may be
-- gone.
--
-- Another transfer may have written behind that event nevertheless, as the primary key of the log will say.
-- Parameters: arrays of one length: topic_ids, incarnations, partitions, last_ids.
-- Relies on: the primary keys of django_events_topic and django_events_topichead.
SELECT known.topic_id
FROM unnest(%(topic_ids)s::int[], %(incarnations)s::uuid[], %(partitions)s::int[], %(last_ids)s::bigint[])
    AS known (topic_id, incarnation, partitions, last_id)
JOIN django_events_topic AS t
    ON t.id = known.topic_id AND t.incarnation = known.incarnation AND t.partitions = known.partitions
    AND t.mirror_of = ''
JOIN django_events_topichead AS head
    ON head.topic_id = known.topic_id AND greatest(head.id_floor, head.compacted_until) <= known.last_id
