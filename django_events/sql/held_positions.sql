-- Who handles events of a consumer now, and in which partition.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition), django_events_deliverylease (consumer_id).
SELECT partition, holder
FROM django_events_position
WHERE consumer_id = %(consumer_id)s AND token IS NOT NULL AND leased_until > clock_timestamp()
UNION ALL
SELECT -1, holder
FROM django_events_deliverylease
WHERE consumer_id = %(consumer_id)s AND leased_until > clock_timestamp()
ORDER BY partition, holder
