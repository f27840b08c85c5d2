-- The prepared transactions that hold rows which workers and transfers write, one table of each.
--
-- What only published is no matter: nobody waits for it. Where it holds a position, or what a worker has in hand, the
-- consumer and its topic are named, otherwise they are null.
-- Parameters: age (an interval; a younger one is left out).
-- Relies on: the views of the server, and few enough positions and leases to look at all of them.
SELECT DISTINCT ON (x.gid)
    x.gid, x.owner::text, c.relname::text, clock_timestamp() - x.prepared, consumer.name, consumer.topic
FROM pg_prepared_xacts AS x
JOIN pg_locks AS own ON own.locktype = 'transactionid' AND own.transactionid = x.transaction AND own.pid IS NULL
JOIN pg_locks AS l ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND l.locktype = 'relation'
JOIN pg_class AS c ON c.oid = l.relation
LEFT JOIN LATERAL (
    SELECT r.name, t.name AS topic
    FROM (
        SELECT p.consumer_id FROM django_events_position AS p WHERE p.xmax = x.transaction
        UNION ALL
        SELECT h.consumer_id FROM django_events_deliverylease AS h WHERE h.xmax = x.transaction
    ) AS held
    JOIN django_events_consumer AS r ON r.id = held.consumer_id
    JOIN django_events_topic AS t ON t.id = r.topic_id
    LIMIT 1
) AS consumer ON true
WHERE x.database = current_database()
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.mode NOT IN ('AccessShareLock')
    AND c.relname IN (
        'django_events_position', 'django_events_delivery', 'django_events_deliverylease', 'django_events_consumer',
        'django_events_topichead'
    )
    AND x.prepared < clock_timestamp() - %(age)s::interval
ORDER BY x.gid, c.relname
