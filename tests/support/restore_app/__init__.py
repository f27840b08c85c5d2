"""A topic that forgets and one that fails, for tests that dump a database and restore it elsewhere."""
