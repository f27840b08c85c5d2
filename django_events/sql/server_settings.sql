-- Settings as a session of this role begins with them, in their units; those that it may not see are left out.
--
-- Parameters: names.
-- Relies on: the views of the server.
SELECT s.name, s.reset_val FROM pg_settings AS s WHERE s.name = ANY(%(names)s)
