-- Note in the transaction what was settled under a token: the note goes with a rollback, of a savepoint too.
--
-- Parameters: token, event_ids (as text, each with a comma behind it).
SELECT set_config(
    'django_events.t' || %(token)s::text,
    concat(current_setting('django_events.t' || %(token)s::text, true), %(event_ids)s::text),
    true
)
