-- Part of a condition on an event `e` of a topic's own log: it is of the partition of a position `p`.
--
-- Relies on: (partition, id) of the log.
e.partition = p.partition
