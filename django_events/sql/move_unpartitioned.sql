-- As move.sql, where every topic has one partition: ids and numbers follow from one count, which
-- spares a sort of the batch.
--
-- Parameters: those of move.sql: topic_ids, marks, events, last_ids, partitions (all 1), logged_ats,
-- number_topic_ids, number_partitions, numbers, channel, longest. Answers with how many events each topic got.
-- Relies on: the primary key of the buffer (topic_id, id).
WITH topic AS (
    SELECT t.*, range.*, coalesce(known.number, 0) AS last_number
    FROM unnest(
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
        (topic_id, id, partition, number, type, key, value, body, metadata, published_at, logged_at)
    SELECT
        topic_id, last_id + place, 0, last_number + place, type, key, value, body, metadata, published_at, logged_at
    FROM (SELECT moved.*, row_number() OVER (PARTITION BY topic_id ORDER BY id) AS place FROM moved) AS placed
),
counted AS (
    SELECT
        topic_id, 0 AS partition, count(*) AS events,
        extract(epoch FROM max(logged_at) - min(published_at))::float8 AS waited
    FROM moved
    GROUP BY topic_id
),
list AS (
    SELECT string_agg(topic_id || ':' || partition, ',') AS of_partitions FROM counted
)
SELECT
    topic_id, partition, events, waited,
    (
        SELECT pg_notify(%(channel)s, CASE WHEN length(of_partitions) <= %(longest)s THEN of_partitions ELSE '' END)
        FROM list
    )::text
FROM counted
