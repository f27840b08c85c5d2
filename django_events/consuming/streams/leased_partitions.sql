-- name: readable_until
-- Up to which id a leased partition can be read now, and its barrier: in one snapshot, so that no event is read that came
-- after a barrier was set. The id is null where nothing is behind the position, or where the consumer has another revision
-- than the worker knows: behind what it has read may be events that its filter, or its handler, doesn't know.
--
-- The row is looked for as in `settle`. The position is a literal, so that the planner opens no older segment.
-- Parameters: position_id, row_address (a ctid, or null), revision. Literals: topic_id, after. Identifiers: log.
-- Relies on: the row's address, or the primary key of django_events_position; the primary keys of django_events_consumer
-- and of the log.
SELECT CASE WHEN c.revision = %(revision)s THEN least(last.id, p.barrier - 1) END, p.barrier
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id
LEFT JOIN (
    SELECT e.id FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id > {after} ORDER BY e.id DESC LIMIT 1
) AS last ON true
WHERE p.ctid = coalesce(%(row_address)s::tid, p.ctid) AND p.id = %(position_id)s


-- name: count_attempt
-- Count an attempt before it starts, so that it is counted even if the handler ends its process.
--
-- The commit waits for the disk: a crash of the server must not forget the attempt.
-- Parameters: position_id, token, event_id, careful_until.
-- Relies on: the primary key of django_events_position.
UPDATE django_events_position
SET
    attempts = CASE WHEN attempted = %(event_id)s THEN attempts + 1 ELSE 1 END,
    attempted = %(event_id)s,
    careful_until = greatest(careful_until, %(careful_until)s)
WHERE id = %(position_id)s AND token = %(token)s
RETURNING attempts, ctid::text,
    CASE
        WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true)
    END


-- name: settle
-- Write down how far a consumer is in a partition, if the token is still that of the lease.
--
-- The row is tried first at the address where it was last written: while an old snapshot is open, a look-up by the key
-- walks over every version since. No answer means that the row is elsewhere, or that the lease was lost.
-- Parameters: position_id, token, row_address (a ctid, or null to look up by the key), position, number,
-- handled, failed, ignored, dead_lettered (how many more), attempted, attempts, pause (an interval
-- until the next attempt, or null), failing_since, careful_until, stopped, error (null to leave it, and failing_since),
-- release, lock (whether to take the lock of `take_lock`, by which a worker that freezes before COMMIT is found).
-- Answers with the row's address, the barrier, whether the transaction is still the one that began with `take_lock`, and whether the
-- lock was taken, null if that was not asked for. If it was not taken, nothing must be committed: a takeover is under way.
-- Relies on: the row's address, or the primary key of django_events_position.
UPDATE django_events_position
SET
    position = %(position)s,
    number = %(number)s,
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    ignored = ignored + %(ignored)s,
    dead_lettered = dead_lettered + %(dead_lettered)s,
    attempted = %(attempted)s,
    attempts = %(attempts)s,
    retry_at = clock_timestamp() + %(pause)s::interval,
    failing_since = CASE WHEN %(error)s::text IS NULL THEN failing_since ELSE %(failing_since)s::timestamptz END,
    careful_until = %(careful_until)s,
    stopped_at = CASE WHEN %(stopped)s THEN clock_timestamp() END,
    error = coalesce(%(error)s, error),
    token = CASE WHEN %(release)s THEN NULL ELSE token END,
    leased_until = CASE WHEN %(release)s THEN NULL ELSE leased_until END,
    holder = CASE WHEN %(release)s THEN '' ELSE holder END
WHERE ctid = coalesce(%(row_address)s::tid, ctid) AND id = %(position_id)s AND token = %(token)s
RETURNING
    ctid::text,
    barrier,
    current_setting('django_events.token', true) = %(token)s::text,
    CASE WHEN %(lock)s THEN pg_try_advisory_xact_lock(%(token)s) END
