-- name: tell
-- Tell triggers what holds for the events that they publish, until the transaction ends or they are told otherwise.
--
-- Literals: context (JSON, or nothing), suppressed (topics and models, separated by commas).
SELECT
    set_config('django_events.context', {context}, true),
    set_config('django_events.suppressed', {suppressed}, true)
