-- Give the rights of one role to another.
--
-- Parts: role, to.
GRANT {role} TO {to}
