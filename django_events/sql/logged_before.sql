-- Whether an event was logged before a moment. The database compares: a site without time zones reads other times.
--
-- The id is a literal, so that the planner opens one segment.
-- Parameters: moment. Literals: topic_id, id. Identifiers: log.
-- Relies on: the primary key of the log.
SELECT e.logged_at < %(moment)s FROM {log} AS e WHERE e.topic_id = {topic_id} AND e.id = {id}
