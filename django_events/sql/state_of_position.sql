-- Part of a SELECT: what goes on in a position `p` of a consumer `c`. A queue goes on while some of it is retried.
--
-- Relies on: nothing but the two rows.
CASE
    WHEN p.stopped_at IS NOT NULL THEN 'stopped'
    WHEN c.mode = 'queue' AND c.paused_at IS NULL AND p.retry_at IS NOT NULL THEN 'retrying'
    WHEN p.token IS NOT NULL AND p.leased_until > clock_timestamp() THEN 'handling'
    WHEN c.paused_at IS NOT NULL THEN 'paused'
    WHEN p.token IS NOT NULL THEN 'lost'
    WHEN p.retry_at IS NOT NULL THEN 'retrying'
    ELSE 'idle'
END
