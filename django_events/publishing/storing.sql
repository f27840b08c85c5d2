-- name: publish_later_or_once
-- As `publish`, for an event that is published at a time to come, or only if its dedup key is not taken.
--
-- Parameters: those of `publish`: topic, value, type, key, body, metadata, partition, wake; publish_at (null: now),
-- dedup_key (null: each time), dedup_window. Answers with nothing where the key is taken.
-- Relies on: django_events_topic (name), the primary key of django_events_dedupkey.
SELECT
    CASE
        WHEN %(publish_at)s::timestamptz IS NULL THEN django_events_publish(
            %(topic)s::text, %(value)s::jsonb, %(type)s::text, %(key)s::text, %(body)s::bytea, %(metadata)s::jsonb,
            %(partition)s::integer, %(wake)s::boolean
        )
        ELSE django_events_schedule(
            %(topic)s::text, %(publish_at)s::timestamptz,
            %(value)s::jsonb, %(type)s::text, %(key)s::text, %(body)s::bytea, %(metadata)s::jsonb,
            %(partition)s::integer, %(wake)s::boolean
        )
    END,
    date_part('epoch', statement_timestamp()), date_part('epoch', clock_timestamp())
WHERE %(dedup_key)s::text IS NULL
    OR django_events_is_new(%(topic)s::text, %(dedup_key)s::text, %(dedup_window)s::interval)


-- name: publish_large
-- As `publish`, for an event that is not small: the function would look through its JSON once more, which Python has done.
--
-- Parameters: topic, value, type, key, body, metadata, partition, wake (null: decide by the server).
-- Relies on: django_events_topic (name).
INSERT INTO django_events_bufferedevent ({buffered_columns})
VALUES (
    django_events_open(%(topic)s::text, %(wake)s::boolean),
    %(partition)s::integer, %(type)s::text, %(key)s::text, %(value)s::jsonb, %(body)s::bytea, %(metadata)s::jsonb
)
RETURNING id, date_part('epoch', statement_timestamp()), date_part('epoch', clock_timestamp())


-- name: publish_value
-- As `publish`, for the event that most events are: a value with a type and a key, and nothing else.
--
-- Parameters: topic, value, type, key.
-- Relies on: django_events_topic (name).
SELECT django_events_publish(
    %(topic)s::text, %(value)s::jsonb, %(type)s::text, %(key)s::text, NULL::bytea, pg_catalog.jsonb_build_object(),
    NULL::integer, NULL::boolean
), date_part('epoch', statement_timestamp()), date_part('epoch', clock_timestamp())


-- name: publish
-- Publish one event: put it into the buffer and wake the transfer if it sleeps. Answers with its ticket, and with the
-- seconds of the epoch between which it was published: when the statement began, and now.
--
-- The function looks the topic up, inserts and rings in one round trip, and PostgreSQL keeps its
-- plans for the session: it costs what a bare INSERT does, also through a pooler, where
-- prepared statements are not to be had. All arguments are given with their exact types: another function of this name is
-- never a better match.
-- Parameters: topic, value, type, key, body, metadata, partition, wake (null: decide by the server).
-- Relies on: django_events_topic (name).
SELECT django_events_publish(
    %(topic)s::text, %(value)s::jsonb, %(type)s::text, %(key)s::text, %(body)s::bytea, %(metadata)s::jsonb,
    %(partition)s::integer, %(wake)s::boolean
), date_part('epoch', statement_timestamp()), date_part('epoch', clock_timestamp())


-- name: copy_scheduled
-- Schedule many events: those of one time are published in the order of the rows.
COPY django_events_scheduledevent (topic_id, {drafted_columns}, publish_at) FROM STDIN


-- name: copy
-- Publish many events: their tickets rise in the order of the rows.
COPY django_events_bufferedevent (topic_id, {drafted_columns}) FROM STDIN


-- name: new_ones
-- Which of these dedup keys were not taken; they are now. The first of several that are the same is the new one.
--
-- Parameters: topic, indexes, keys, windows (arrays of one length, sorted by the key).
-- Relies on: the primary key of django_events_dedupkey.
SELECT k.index
FROM unnest(%(indexes)s::int[], %(keys)s::text[], %(windows)s::interval[]) AS k (index, key, keeping)
WHERE django_events_is_new(%(topic)s::text, k.key::text, k.keeping::interval)
