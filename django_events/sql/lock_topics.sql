-- Let only one process at a time make or change topics, until its transaction ends.
--
-- A lock of the table, as the first statement: unlike a function that takes a lock, it takes no
-- snapshot, so whoever waited sees what was made meanwhile, at REPEATABLE READ too. Readers and
-- publishers don't notice it.
LOCK TABLE django_events_topic IN SHARE ROW EXCLUSIVE MODE
