-- As the first statement of a transaction: each statement sees what was committed before it,
-- whatever the site's default is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
