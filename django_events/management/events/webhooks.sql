-- name: newest_attempts
-- The newest attempt at each webhook endpoint that has one.
--
-- The range is of both columns, and so is the order. With `endpoint_id = w.id` and the order of ids, the planner may read
-- the newest attempts of all endpoints until it comes to one: for an endpoint without any, all attempts there are.
-- Relies on: django_events_webhookattempt_i.
SELECT newest.id
FROM django_events_webhookendpoint AS w
CROSS JOIN LATERAL (
    SELECT a.endpoint_id, a.id
    FROM django_events_webhookattempt AS a
    WHERE (a.endpoint_id, a.id) < (w.id + 1, 0::bigint)
    ORDER BY a.endpoint_id DESC, a.id DESC
    LIMIT 1
) AS newest
WHERE newest.endpoint_id = w.id
