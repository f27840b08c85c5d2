-- Leave all queue consumers but these out, when events come into the log, until the transaction or savepoint ends.
--
-- Parameters: consumer_ids (0 is none).
-- Relies on: deliver.sql.
SELECT set_config('django_events.only', %(consumer_ids)s::int[]::text, true)
