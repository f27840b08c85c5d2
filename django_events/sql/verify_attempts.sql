-- The positions of a topic's streams whose attempts, or whose events to be handled one by one, are about no event that the
-- consumer has there.
--
-- What the log has dropped is believed. Parameters: last_id, id_floor, most. Literals: topic_id. Identifiers: log.
-- Answers with how many there are, the fault, consumer, partition, and the id.
-- Relies on: the primary key of the log, django_events_position (consumer_id, partition).
WITH said AS (
    SELECT c.name, p.partition, said.fault, said.id
    FROM django_events_consumer AS c
    JOIN django_events_position AS p ON p.consumer_id = c.id
    CROSS JOIN LATERAL (
        VALUES ('attempted', p.attempted), ('careful', nullif(p.careful_until, 0))
    ) AS said (fault, id)
    WHERE c.topic_id = {topic_id} AND c.mode = 'stream' AND (said.id > %(id_floor)s OR said.id < 1)
)
SELECT count(*) OVER (), said.fault, said.name, said.partition, said.id
FROM said
LEFT JOIN {log} AS e ON e.topic_id = {topic_id} AND e.id = said.id
WHERE said.id > %(last_id)s
    OR said.id < 1
    OR (said.partition <> -1 AND e.partition <> said.partition)
ORDER BY said.fault, said.name, said.partition
LIMIT %(most)s
