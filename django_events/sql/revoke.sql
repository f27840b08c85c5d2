-- Take rights on something from roles.
--
-- Parts: rights, things, roles.
REVOKE {rights} ON {things} FROM {roles}
