-- name: log_is_plain
-- Whether the log is a table without partitions: Django made it from the model, and no migration ran.
--
-- Relies on: the catalog's own indexes.
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('django_events_event') AND relkind = 'r')


-- name: has_rows
-- Whether a table has rows.
--
-- Identifiers: table.
SELECT EXISTS (SELECT FROM {table})


-- name: drop_tables
-- Drop tables, with what refers to them.
--
-- Identifiers: tables.
DROP TABLE {tables} CASCADE
