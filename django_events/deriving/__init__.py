"""What is derived from the log, and how a site sees it: it waits for its own writes, and takes snapshots of tables."""
