-- name: in_hand
-- Partitions of streams, and deliveries of queues, that a worker has had in hand for long and renews its lease of: since
-- when, and where that is known which event is the first.
--
-- A worker takes a partition for a moment's work, and deliveries together with those that it can handle in a moment. Each
-- delivery is looked up by itself: see `deliveries_of_token`.
-- Parameters: age (an interval), most. Parts: event_of_position, first_in_hand.
-- Relies on: django_events_position and django_events_deliverylease are small; the primary key of django_events_delivery.
SELECT c.name, t.name, p.partition, {event_of_position} AS event_id, p.holder, p.served_at AS since
FROM django_events_position AS p
JOIN django_events_consumer AS c ON c.id = p.consumer_id AND c.mode = 'stream'
JOIN django_events_topic AS t ON t.id = c.topic_id
WHERE p.token IS NOT NULL AND p.leased_until > clock_timestamp() AND p.served_at < clock_timestamp() - %(age)s::interval
UNION ALL
SELECT c.name, t.name, -1, hand.event_id, l.holder, hand.since
FROM django_events_deliverylease AS l
JOIN django_events_consumer AS c ON c.id = l.consumer_id
JOIN django_events_topic AS t ON t.id = c.topic_id
CROSS JOIN LATERAL ({first_in_hand}) AS hand
WHERE l.leased_until > clock_timestamp() AND hand.since < clock_timestamp() - %(age)s::interval
ORDER BY since
LIMIT %(most)s
