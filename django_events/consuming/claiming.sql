-- name: isolation
-- At which isolation level the transaction is.
SELECT current_setting('transaction_isolation')


-- name: in_hand
-- Which deliveries a worker still has in hand: what was settled is not there any more, and again after a rollback.
--
-- Parameters: consumer_id, token, event_ids (that were claimed).
-- Relies on: the primary key of django_events_delivery.
SELECT d.event_id
FROM django_events_delivery AS d
WHERE d.consumer_id = %(consumer_id)s AND d.event_id = ANY(%(event_ids)s::bigint[]) AND d.token = %(token)s
ORDER BY d.event_id


-- name: note_settled
-- Note in the transaction what was settled under a token: the note goes with a rollback, of a savepoint too.
--
-- Parameters: token, event_ids (as text, each with a comma behind it).
SELECT set_config(
    'django_events.t' || %(token)s::text,
    concat(current_setting('django_events.t' || %(token)s::text, true), %(event_ids)s::text),
    true
)


-- name: noted_as_settled
-- What `note_settled` noted in this transaction, as far as that was not rolled back.
--
-- Parameters: token.
SELECT coalesce(current_setting('django_events.t' || %(token)s::text, true), '')
