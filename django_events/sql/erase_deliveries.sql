-- Forget the errors of deliveries of erased events, and their keys where those go. Answers with how many.
--
-- Parameters: consumer_ids, event_ids, new_key (null to keep the keys), keys_follow (whether the keys go later: what has
-- one is counted then).
-- Relies on: the primary key of django_events_delivery.
WITH erased AS (
    UPDATE django_events_delivery AS d
    SET error = '', key = CASE WHEN d.key IS NOT NULL THEN coalesce(%(new_key)s, d.key) END
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id = ANY(%(event_ids)s::bigint[])
        AND (d.error <> '' OR d.key <> %(new_key)s)
    RETURNING d.key
)
SELECT count(*) FROM erased WHERE erased.key IS NULL OR NOT %(keys_follow)s
