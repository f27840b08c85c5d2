-- name: begin
-- Begin a transaction, in which each statement sees what was committed before it, with its first statement.
--
-- Parts: first.
BEGIN ISOLATION LEVEL READ COMMITTED;
{first}
