-- The partitions of a consumer that somebody handles now, and who.
--
-- Parameters: consumer_id.
-- Relies on: django_events_position (consumer_id, partition).
SELECT partition, holder
FROM django_events_position
WHERE consumer_id = %(consumer_id)s AND token IS NOT NULL AND leased_until > clock_timestamp()
ORDER BY partition
