-- Delete dedup keys whose window is over; whoever is taking one of them again keeps it.
--
-- Parameters: limit. Answers with a row for each.
-- Relies on: django_events_dedup_expired (expires_at), the primary key of django_events_dedupkey.
DELETE FROM django_events_dedupkey AS k
USING (
    SELECT topic_id, key
    FROM django_events_dedupkey
    WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS expired
WHERE k.topic_id = expired.topic_id AND k.key = expired.key
RETURNING k.topic_id
