-- Part of a SELECT: nothing in the place of bytes that can't be sent.
--
-- Identifiers: name.
NULL::bytea AS {name}
