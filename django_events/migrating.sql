-- name: log_is_plain
-- Whether the log is a table without partitions: Django made it from the model, and no migration ran.
--
-- Relies on: the catalog's own indexes.
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('django_events_event') AND relkind = 'r')
