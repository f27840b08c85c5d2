"""Streams: a worker leases a partition, reads it in order, and moves its position."""
