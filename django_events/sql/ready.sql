-- Whether a session could publish: it may write, and there is what publishing goes through.
--
-- Relies on: the catalog's own indexes.
SELECT
    current_setting('transaction_read_only'),
    to_regclass('django_events_topic') IS NOT NULL
        AND to_regclass('django_events_bufferedevent') IS NOT NULL
        AND to_regproc('django_events_publish') IS NOT NULL
