-- Be among those who claim deliveries of a queue consumer until the transaction ends, unless somebody has them wait.
--
-- In an earlier statement than the claim, so that the claim sees what was done by who had it wait: see stand_still.sql.
-- Parameters: consumer_id. Answers with it, or with nothing.
-- Relies on: nothing but the lock table.
SELECT set_config(
    'django_events.claims',
    CASE WHEN pg_try_advisory_xact_lock_shared(561, %(consumer_id)s) THEN %(consumer_id)s::text ELSE '' END,
    true
)
