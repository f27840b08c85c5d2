-- name: matches
-- Whether an event that is in no log meets the condition of a consumer.
--
-- Parts: match (a condition on an event `e`). Parameters: type, key, value, metadata.
SELECT {match}
FROM (SELECT %(type)s::text AS type, %(key)s::text AS key, %(value)s::jsonb AS value, %(metadata)s::jsonb AS metadata) AS e
