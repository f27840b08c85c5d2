-- name: publish_again
-- Publish a copy of an event of the log, inside the server, so that not a byte of it changes.
--
-- It wakes the transfer as `publish` does. Literals: topic_id, event_id. Identifiers: log. Parameters: topic, context
-- (metadata of the publisher, in JSON), why (metadata of the copy, which win, in JSON), wake (null: decide by the server),
-- dedup_key (null: each time), dedup_window. Answers with the ticket, null where the key is taken, and the type; with
-- nothing where the log has no such event.
-- Relies on: the primary keys of the log and of django_events_dedupkey, django_events_topic (name).
SELECT
    CASE
        WHEN %(dedup_key)s::text IS NULL
            OR django_events_is_new(%(topic)s::text, %(dedup_key)s::text, %(dedup_window)s::interval)
            THEN django_events_publish(
                %(topic)s::text, e.value, e.type::text, e.key::text, e.body,
                %(context)s::jsonb || e.metadata || %(why)s::jsonb,
                NULL::integer, %(wake)s::boolean
            )
    END,
    e.type
FROM {log} AS e
WHERE e.topic_id = {topic_id} AND e.id = {event_id}


-- name: topic_id
-- The id of a topic.
--
-- Parameters: topic.
-- Relies on: django_events_topic (name).
SELECT id FROM django_events_topic WHERE name = %(topic)s
