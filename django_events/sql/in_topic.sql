-- Part of a condition on an event `e`: it is of one topic, for a reader of all its partitions.
--
-- Literals: topic_id.
-- Relies on: the primary key of the log.
e.topic_id = {topic_id}
