-- Give rights on something to a role.
--
-- Parts: rights, things. Identifiers: role.
GRANT {rights} ON {things} TO {role}
