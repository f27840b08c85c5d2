-- Part of a claim of deliveries: a lease of those that were picked, and the token in each of them.
--
-- No index changes with a lease. Rows are found again by an array, because a join may be planned to read the whole
-- table, and between bounds, because without statistics an array may be planned as a mere filter.
-- Parameters: consumer_id, token, lease (an interval), holder.
-- Relies on: the primary key of django_events_delivery.
lease AS (
    INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)
    SELECT %(token)s, %(consumer_id)s, clock_timestamp() + %(lease)s, %(holder)s, jsonb_agg(picked.event_id)
    FROM picked
    HAVING count(*) > 0
),
claimed AS (
    UPDATE django_events_delivery AS d
    SET
        token = %(token)s,
        visible_at = NULL,
        delivered = d.delivered + 1,
        first_at = coalesce(d.first_at, clock_timestamp()),
        last_at = clock_timestamp()
    WHERE d.consumer_id = %(consumer_id)s
        AND d.event_id = ANY(ARRAY(SELECT picked.event_id FROM picked))
        AND d.event_id >= (SELECT min(picked.event_id) FROM picked)
        AND d.event_id <= (SELECT max(picked.event_id) FROM picked)
    RETURNING d.event_id, d.attempts, d.key
)
