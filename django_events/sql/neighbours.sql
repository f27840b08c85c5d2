-- The events of the same key before and after an event, in a topic with a timeline; null where there is none.
--
-- In the order of the index, which alone can answer it: a planner that takes a key for a frequent one would rather
-- read the log backwards until it comes.
-- Parameters: key, event_id. Identifiers: log.
-- Relies on: (key, id) of the log.
SELECT
    (
        SELECT near.id
        FROM (
            SELECT e.key, e.id
            FROM {log} AS e
            WHERE (e.key, e.id) < (%(key)s, %(event_id)s)
            ORDER BY e.key DESC, e.id DESC
            LIMIT 1
        ) AS near
        WHERE near.key = %(key)s
    ),
    (
        SELECT near.id
        FROM (
            SELECT e.key, e.id
            FROM {log} AS e
            WHERE (e.key, e.id) > (%(key)s, %(event_id)s)
            ORDER BY e.key, e.id
            LIMIT 1
        ) AS near
        WHERE near.key = %(key)s
    )
