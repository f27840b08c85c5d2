-- Give rights on something to a role.
--
-- Parts: rights, things, role.
GRANT {rights} ON {things} TO {role}
