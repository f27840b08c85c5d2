-- name: move
-- Move the few events of one topic that a wake-up is about, where everything is as this transfer left it: `move` in one
-- prepared statement that is a transaction by itself.
--
-- It does nothing where another transfer has the topic's lock or moved something since, where topic, buffer or log are
-- not those of before, where the topic is a mirror, or where a mirror has passed ids that its source no longer had. The
-- end of the log is read in the snapshot in which the lock was not taken yet: a transfer that committed in between has
-- taken the same ids, so the primary key of the log refuses this batch.
-- Parameters: mark, most, last_id, incarnation, partitions, filenode (of the buffer), number_partitions and numbers
-- (arrays of one length: what is known of the partitions), channel, longest. Literals: topic_id. Identifiers: segment
-- (where the log ends). Parts: told.
-- Answers as `move` does, and with the last ticket.
-- Relies on: the primary keys of the buffer (topic_id, id) and of the segment.
WITH head AS MATERIALIZED (
    SELECT h.topic_id, last.logged_at
    FROM django_events_topichead AS h
    JOIN django_events_topic AS t ON t.id = h.topic_id
    CROSS JOIN LATERAL (
        SELECT e.id, e.logged_at FROM {segment} AS e WHERE e.topic_id = {topic_id} ORDER BY e.id DESC LIMIT 1
    ) AS last
    WHERE h.topic_id = {topic_id} AND last.id = %(last_id)s::bigint
        AND greatest(h.id_floor, h.compacted_until) <= %(last_id)s::bigint
        AND t.incarnation = %(incarnation)s::uuid AND t.partitions = %(partitions)s::int AND t.mirror_of = ''
        AND pg_relation_filenode('django_events_bufferedevent') = %(filenode)s::oid
    FOR UPDATE OF h SKIP LOCKED
),
range AS MATERIALIZED (
    SELECT min(ids.id) AS lower, max(ids.id) AS upper
    FROM (
        SELECT b.id
        FROM head
        CROSS JOIN LATERAL (
            SELECT b.id
            FROM django_events_bufferedevent AS b
            WHERE b.topic_id = {topic_id} AND b.id > %(mark)s::bigint
            ORDER BY b.id
            LIMIT %(most)s::int
        ) AS b
    ) AS ids
),
moved AS (
    DELETE FROM django_events_bufferedevent AS b
    USING head
    WHERE b.topic_id = {topic_id}
        AND b.id >= (SELECT range.lower FROM range)
        AND b.id <= (SELECT range.upper FROM range)
    RETURNING
        b.*,
        greatest(head.logged_at, statement_timestamp()) AS logged_at,
        CASE
            WHEN b.partition IS NOT NULL THEN abs(b.partition %% %(partitions)s::int)
            WHEN b.key IS NOT NULL
                THEN ((hashtextextended(b.key, 0) & 9223372036854775807) %% %(partitions)s::int)::int
            ELSE ((hashint8extended(b.id, 0) & 9223372036854775807) %% %(partitions)s::int)::int
        END AS placed_in
),
numbered AS (
    SELECT
        moved.*,
        coalesce(known.number, 0) + row_number() OVER (PARTITION BY moved.placed_in ORDER BY moved.id) AS number
    FROM moved
    LEFT JOIN unnest(%(number_partitions)s::int[], %(numbers)s::bigint[]) AS known (partition, number)
        ON known.partition = moved.placed_in
),
logged AS (
    INSERT INTO django_events_event
        (topic_id, {event_columns})
    SELECT
        topic_id, %(last_id)s::bigint + row_number() OVER (ORDER BY id),
        placed_in, number, {said_columns}, published_at, logged_at
    FROM numbered
),
counted AS (
    SELECT
        topic_id, placed_in AS partition, count(*) AS events,
        extract(epoch FROM max(logged_at) - min(published_at))::float8 AS waited,
        max(logged_at) AS logged_at,
        max(id) AS upper
    FROM moved
    GROUP BY topic_id, placed_in
),
list AS (
    SELECT string_agg(topic_id || ':' || partition, ',') AS of_partitions FROM counted
)
SELECT
    topic_id, partition, events, waited, logged_at::text, upper,
    (
        SELECT pg_notify(%(channel)s, CASE WHEN length(of_partitions) <= %(longest)s::int THEN of_partitions ELSE '' END)
        FROM list
    )::text
FROM counted
