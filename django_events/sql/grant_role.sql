-- Give the rights of one role to another.
--
-- Identifiers: role, to.
GRANT {role} TO {to}
