-- Forget the errors of deliveries of events that the log has dropped while a worker had them. Answers with how many.
--
-- Only a queue that is ordered keeps the key: of the others, all that may be of the key go.
-- Parameters: consumer_ids, first (the first id that the log has), keys.
-- Relies on: the primary key of django_events_delivery.
WITH erased AS (
    UPDATE django_events_delivery AS d
    SET error = ''
    WHERE d.consumer_id = ANY(%(consumer_ids)s::int[]) AND d.event_id < %(first)s
        AND d.error <> ''
        AND (d.key IS NULL OR d.key = ANY(%(keys)s::text[]))
    RETURNING 1
)
SELECT count(*) FROM erased
