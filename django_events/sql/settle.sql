-- Write down how far a consumer is in a partition, if the lease is still the settler's.
--
-- Where the row was when it was last written is tried first: under an old snapshot, a look by the key walks
-- over every version since. No answer means that the row is elsewhere, or that the lease was lost.
-- Parameters: position_id, token, place (a ctid, or null to look by the key), position, number,
-- handled, failed, discarded, dead_lettered (how many more), attempted, attempts, pause (an interval
-- until the next attempt, or null), careful_until, stopped, error (null to leave it),
-- release, hold (whether to take the lock of hold.sql, by which a frozen settler is found).
-- Answers with where the row is now, whether the transaction is still the one that began with hold.sql, and whether that
-- lock was had, null if it was not asked for. Without it nothing must be committed: somebody takes over now.
-- Relies on: the row's place, or the primary key of django_events_position.
UPDATE django_events_position
SET
    position = %(position)s,
    number = %(number)s,
    handled = handled + %(handled)s,
    failed = failed + %(failed)s,
    discarded = discarded + %(discarded)s,
    dead_lettered = dead_lettered + %(dead_lettered)s,
    attempted = %(attempted)s,
    attempts = %(attempts)s,
    retry_at = clock_timestamp() + %(pause)s::interval,
    careful_until = %(careful_until)s,
    stopped_at = CASE WHEN %(stopped)s THEN clock_timestamp() END,
    error = coalesce(%(error)s, error),
    token = CASE WHEN %(release)s THEN NULL ELSE token END,
    leased_until = CASE WHEN %(release)s THEN NULL ELSE leased_until END,
    holder = CASE WHEN %(release)s THEN '' ELSE holder END
WHERE ctid = coalesce(%(place)s::tid, ctid) AND id = %(position_id)s AND token = %(token)s
RETURNING
    ctid::text,
    current_setting('django_events.token', true) = %(token)s::text,
    CASE WHEN %(hold)s THEN pg_try_advisory_xact_lock(%(token)s) END
