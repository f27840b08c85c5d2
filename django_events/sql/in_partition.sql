-- Part of a condition on an event `e` of a topic's own log: it is of one partition.
--
-- Literals: partition.
-- Relies on: (partition, id) of the log.
e.partition = {partition}
