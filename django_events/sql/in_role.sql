-- A role for what comes behind it in the same message, as Django's option `assume_role` has it for a session.
--
-- Literals: role.
-- Relies on: nothing.
SELECT set_config('role', {role}, true)
