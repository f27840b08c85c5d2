"""What follows the log without being a consumer: listeners, and streams of server-sent events to browsers.

A listener has no row and holds nothing back: one tailer per process and database reads the log for all of them.
"""
