"""Queues for programs that have no handler: `claim()`, a token by which any process settles, and SQL functions."""
