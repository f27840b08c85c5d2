-- name: listen
-- Be sent the notifications of a channel.
--
-- Identifiers: channel.
LISTEN {channel}


-- name: wait_idle
-- Let the session wait for as long as it has to: a site's limit for idle sessions is not meant for one that listens.
SET idle_session_timeout = 0


-- name: set_for_session
-- Change a setting of the session.
--
-- Parameters: name, value.
SELECT set_config(%(name)s, %(value)s, false)
