-- name: lock_maps
-- Take the map of a database for this transaction, waiting in turn for those who publish by it. Readers don't wait.
--
-- A publisher's lock on the row goes with one on the table, so that none comes in between.
LOCK TABLE django_events_shardmap IN EXCLUSIVE MODE
