-- Attach the log of a topic to the root. It is small or empty, so looking through it takes no time.
--
-- Identifiers: log, topic_id (a literal).
ALTER TABLE django_events_event ATTACH PARTITION {log} FOR VALUES IN ({topic_id})
