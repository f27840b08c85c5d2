-- Blank events of a key that wait in a table: in the buffer, scheduled or staged. Answers with how many.
--
-- Somebody who is moving one of them just now is waited for: then it is found where it went to. Where the key goes,
-- the event still gets the partition of the others that had it.
-- Literals: topic_id, after, upper. Identifiers: table. Parameters: key, new_key (null to keep the key), partitions.
-- Relies on: the primary key of the table.
WITH erased AS (
    UPDATE {table} AS e
    SET
        partition = CASE
            WHEN %(new_key)s::text IS NULL THEN e.partition
            ELSE coalesce(e.partition, ((hashtextextended(e.key, 0) & 9223372036854775807) %% %(partitions)s)::int)
        END,
        key = coalesce(%(new_key)s, e.key), value = NULL, body = NULL,
        metadata = CASE
            WHEN e.value IS NULL AND e.body IS NULL THEN e.metadata
            ELSE jsonb_build_object('erased', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        END
    WHERE e.topic_id = {topic_id} AND e.id > {after} AND e.id <= {upper} AND e.key = %(key)s
        AND (e.value IS NOT NULL OR e.body IS NOT NULL OR %(new_key)s::text IS NOT NULL)
    RETURNING 1
)
SELECT count(*) FROM erased
