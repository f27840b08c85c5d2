-- name: shard_map
-- The map of shards of a database: this shard's name, the version, the shards, and those that it changes to now, or null;
-- both as JSON.
--
-- Relies on: nothing, the table has one row at most.
SELECT m.name, m.version, m.shards::text, m.following::text FROM django_events_shardmap AS m


-- name: keep_map
-- As `shard_map`, and the map doesn't change until the transaction ends.
--
-- A change takes the table's lock first, which new publishers wait for; the row's lock alone could be kept from it by an
-- endless row of them. In a transaction that sees an older snapshot, a map that has changed since is an error.
-- Relies on: nothing, the table has one row at most.
SELECT m.name, m.version, m.shards::text, m.following::text FROM django_events_shardmap AS m FOR SHARE
