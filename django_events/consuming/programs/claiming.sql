-- name: isolation
-- At which isolation level the transaction is.
SELECT current_setting('transaction_isolation')


-- name: still_claimed
-- Which deliveries still have the token of a lease: a settled one hasn't, and has it again after a rollback.
--
-- Parameters: consumer_id, token, event_ids (that were claimed).
-- Relies on: the primary key of django_events_delivery.
SELECT d.event_id
FROM django_events_delivery AS d
WHERE d.consumer_id = %(consumer_id)s AND d.event_id = ANY(%(event_ids)s::bigint[]) AND d.token = %(token)s
ORDER BY d.event_id


-- name: note_settled
-- Note in the transaction which deliveries were settled under a token. A rollback, of a savepoint too, undoes the note.
--
-- Parameters: token, event_ids (as text, each with a comma behind it).
SELECT set_config(
    'django_events.t' || %(token)s::text,
    concat(current_setting('django_events.t' || %(token)s::text, true), %(event_ids)s::text),
    true
)


-- name: noted_as_settled
-- What `note_settled` noted in this transaction and was not rolled back.
--
-- Parameters: token.
SELECT coalesce(current_setting('django_events.t' || %(token)s::text, true), '')
