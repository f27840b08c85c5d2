-- name: note_attempts
-- Put attempts to deliver to an endpoint on record, in the transaction that settles them.
--
-- Parameters: endpoint_id, event_ids, attempts, seconds, statuses, excerpts, errors (arrays of one length).
-- Relies on: nothing, it only inserts.
INSERT INTO django_events_webhookattempt (endpoint_id, event_id, attempt, seconds, status, excerpt, error)
SELECT %(endpoint_id)s, made.*
FROM unnest(
    %(event_ids)s::bigint[], %(attempts)s::int[], %(seconds)s::float8[], %(statuses)s::int[], %(excerpts)s::text[],
    %(errors)s::text[]
) AS made
RETURNING id


-- name: fails
-- Note that an attempt to deliver to an endpoint failed; answers with for how long nothing could be delivered.
--
-- One that was disabled, and goes on now, begins anew. A paused one is left as it is: another process disabled it.
-- Parameters: endpoint_id.
-- Relies on: the primary keys of django_events_webhookendpoint and django_events_consumer.
UPDATE django_events_webhookendpoint AS w
SET
    failing_since = CASE
        WHEN w.disabled_because = '' THEN coalesce(w.failing_since, clock_timestamp())
        ELSE clock_timestamp()
    END,
    disabled_because = ''
FROM django_events_consumer AS c
WHERE w.id = %(endpoint_id)s AND c.id = w.consumer_id AND c.paused_at IS NULL
RETURNING clock_timestamp() - w.failing_since


-- name: works
-- Note that something was delivered to an endpoint that failed before; nothing is written of one that didn't.
--
-- Parameters: endpoint_id.
-- Relies on: the primary keys of django_events_webhookendpoint and django_events_consumer.
UPDATE django_events_webhookendpoint AS w
SET failing_since = NULL, disabled_because = ''
FROM django_events_consumer AS c
WHERE w.id = %(endpoint_id)s
    AND (w.failing_since IS NOT NULL OR w.disabled_because <> '')
    AND c.id = w.consumer_id
    AND c.paused_at IS NULL
RETURNING w.id


-- name: disable
-- Disable an endpoint: pause its consumer, and say why; no answer if it is paused already, or has another URL.
--
-- Parameters: endpoint_id, url (where was sent to), reason.
-- Relies on: the primary keys of django_events_webhookendpoint and django_events_consumer.
WITH paused AS (
    UPDATE django_events_consumer AS c
    SET paused_at = clock_timestamp()
    FROM django_events_webhookendpoint AS w
    WHERE w.id = %(endpoint_id)s AND w.url = %(url)s AND c.id = w.consumer_id AND c.paused_at IS NULL
    RETURNING c.id
)
UPDATE django_events_webhookendpoint AS w
SET disabled_because = %(reason)s
FROM paused
WHERE w.consumer_id = paused.id
RETURNING w.id
