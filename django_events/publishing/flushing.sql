-- name: forget_batch
-- Forget the key of a writer's batch that was committed.
--
-- Parameters: topic, batch_key (null: none). Answers with a row if it was there.
-- Relies on: django_events_topic (name), the primary key of django_events_dedupkey.
DELETE FROM django_events_dedupkey
WHERE topic_id = (SELECT t.id FROM django_events_topic AS t WHERE t.name = %(topic)s) AND key = %(batch_key)s
RETURNING key


-- name: enter_batch
-- As the first statement of a writer's transaction: whether no earlier attempt has committed this batch.
--
-- The key is a dedup key that only this batch has. An earlier attempt whose COMMIT got no answer may still be going
-- on: the lock waits for its end, and `end_holder` finds it by the same lock. The id of the transaction could not
-- tell: after a crash of the server, the id of a transaction that was lost is given to another one.
-- Parameters: token, topic, batch_key, keeping (how long the key is kept unless it is forgotten before).
-- Relies on: the primary key of django_events_dedupkey.
SELECT pg_advisory_xact_lock(%(token)s), django_events_is_new(%(topic)s::text, %(batch_key)s::text, %(keeping)s::interval)
