-- Which of these dedup keys were not taken; they are now. The first of several that are the same is the new one.
--
-- Parameters: topic, places, keys, windows (arrays of one length, sorted by the key).
-- Relies on: the primary key of django_events_dedupkey.
SELECT k.place
FROM unnest(%(places)s::int[], %(keys)s::text[], %(windows)s::interval[]) AS k (place, key, keeping)
WHERE django_events_is_new(%(topic)s::text, k.key::text, k.keeping::interval)
