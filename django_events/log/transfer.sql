-- name: move
-- Move a range of the buffer into the log, giving each event its id, partition and number.
--
-- The first events behind the mark, no more than there is room for, in the order of their inserts. The
-- range is found and deleted in one snapshot: what becomes visible in between may belong to a
-- transaction that has events on both sides, and half of it would overtake the other half. Rows are
-- compared as pairs, because an equality would let the planner choose a join that reads all topics.
-- An explicit partition is taken modulo the number of partitions, a key by its hash, the rest by the
-- hash of the ticket: tickets are shared by all topics, so taking turns by them would skip partitions.
-- logged_at is the time of the batch, and never before the batch before it.
-- Parameters: arrays of one length for the topics (topic_ids, marks, events, last_ids, partitions,
-- logged_ats), and of another for what is known of their partitions (number_topic_ids,
-- number_partitions, numbers); channel and longest. Parts: ranges, told.
-- Answers with how many events each partition got, and for how many seconds the oldest of them had waited.
-- The notice on the channel names those partitions, or, where they are more than so many characters, nothing.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH topic AS (
    SELECT *
    FROM {ranges}
),
moved AS (
    DELETE FROM django_events_bufferedevent AS b
    USING topic
    WHERE (b.topic_id, b.id) >= (topic.topic_id, topic.lower) AND (b.topic_id, b.id) <= (topic.topic_id, topic.upper)
    RETURNING
        b.*,
        topic.last_id,
        greatest(topic.logged_at, statement_timestamp()) AS logged_at,
        CASE
            WHEN b.partition IS NOT NULL THEN abs(b.partition %% topic.partitions)
            WHEN b.key IS NOT NULL
                THEN ((hashtextextended(b.key, 0) & 9223372036854775807) %% topic.partitions)::int
            ELSE ((hashint8extended(b.id, 0) & 9223372036854775807) %% topic.partitions)::int
        END AS placed_in
),
numbered AS (
    SELECT
        moved.*,
        coalesce(known.number, 0) + row_number() OVER (PARTITION BY moved.topic_id, moved.placed_in ORDER BY moved.id)
            AS number
    FROM moved
    LEFT JOIN unnest(%(number_topic_ids)s::int[], %(number_partitions)s::int[], %(numbers)s::bigint[])
        AS known (topic_id, partition, number)
        ON known.topic_id = moved.topic_id AND known.partition = moved.placed_in
),
logged AS (
    INSERT INTO django_events_event
        (topic_id, {event_columns})
    SELECT
        topic_id,
        last_id + row_number() OVER (PARTITION BY topic_id ORDER BY id),
        placed_in, number, {said_columns}, published_at, logged_at
    FROM numbered
),
counted AS (
    SELECT
        topic_id, placed_in AS partition, count(*) AS events,
        extract(epoch FROM max(logged_at) - min(published_at))::float8 AS waited,
        max(logged_at) AS logged_at
    FROM moved
    GROUP BY topic_id, placed_in
),
{told}


-- name: move_unpartitioned
-- As `move`, where every topic has one partition: ids and numbers follow from one count, which
-- spares a sort of the batch.
--
-- Parameters: those of `move`: topic_ids, marks, events, last_ids, partitions (all 1), logged_ats,
-- number_topic_ids, number_partitions, numbers, channel, longest. Parts: ranges, told. Answers with how many events each
-- topic got.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH topic AS (
    SELECT t.*, range.*, coalesce(known.number, 0) AS last_number
    FROM {ranges}
    LEFT JOIN unnest(%(number_topic_ids)s::int[], %(number_partitions)s::int[], %(numbers)s::bigint[])
        AS known (topic_id, partition, number)
        ON known.topic_id = t.topic_id AND known.partition = 0
),
moved AS (
    DELETE FROM django_events_bufferedevent AS b
    USING topic
    WHERE (b.topic_id, b.id) >= (topic.topic_id, topic.lower) AND (b.topic_id, b.id) <= (topic.topic_id, topic.upper)
    RETURNING b.*, topic.last_id, topic.last_number, greatest(topic.logged_at, statement_timestamp()) AS logged_at
),
logged AS (
    INSERT INTO django_events_event
        (topic_id, {event_columns})
    SELECT
        topic_id, last_id + ordinal, 0, last_number + ordinal, {said_columns}, published_at, logged_at
    FROM (SELECT moved.*, row_number() OVER (PARTITION BY topic_id ORDER BY id) AS ordinal FROM moved) AS numbered
),
counted AS (
    SELECT
        topic_id, 0 AS partition, count(*) AS events,
        extract(epoch FROM max(logged_at) - min(published_at))::float8 AS waited,
        max(logged_at) AS logged_at
    FROM moved
    GROUP BY topic_id
),
{told}


-- name: ranges
-- Part of `move`: the topics of a batch, and from which ticket of the buffer to which each is moved.
--
-- Parameters: topic_ids, marks, events, last_ids, partitions, logged_ats.
-- Relies on: the primary key of the buffer (topic_id, id).
unnest(
    %(topic_ids)s::int[], %(marks)s::bigint[], %(events)s::int[], %(last_ids)s::bigint[],
    %(partitions)s::int[], %(logged_ats)s::timestamptz[]
) AS t (topic_id, mark, events, last_id, partitions, logged_at)
CROSS JOIN LATERAL (
    SELECT min(ids.id) AS lower, max(ids.id) AS upper
    FROM (
        SELECT b.id
        FROM django_events_bufferedevent AS b
        WHERE b.topic_id = t.topic_id AND b.id > t.mark
        ORDER BY b.id
        LIMIT t.events
    ) AS ids
) AS range


-- name: told
-- Part of `move`: what the batch moved, and the notice to all who listen to the channel of the log.
--
-- Parameters: channel, longest.
list AS (
    SELECT string_agg(topic_id || ':' || partition, ',') AS of_partitions FROM counted
)
SELECT
    topic_id, partition, events, waited, logged_at::text,
    (
        SELECT pg_notify(%(channel)s, CASE WHEN length(of_partitions) <= %(longest)s THEN of_partitions ELSE '' END)
        FROM list
    )::text
FROM counted
