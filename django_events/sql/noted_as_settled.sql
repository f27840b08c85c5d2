-- What note_settled.sql noted in this transaction, as far as that was not rolled back.
--
-- Parameters: token.
SELECT coalesce(current_setting('django_events.t' || %(token)s::text, true), '')
