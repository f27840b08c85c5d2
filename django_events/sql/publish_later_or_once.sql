-- As publish.sql, for an event that is published at a time to come, or only if its dedup key is not taken.
--
-- Parameters: those of publish.sql: topic, value, type, key, body, metadata, partition, wake; publish_at (null: now),
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
    END
WHERE %(dedup_key)s::text IS NULL
    OR django_events_is_new(%(topic)s::text, %(dedup_key)s::text, %(dedup_window)s::interval)
