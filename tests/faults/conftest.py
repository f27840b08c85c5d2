"""A log that is read without Django."""

from tests.support.logs import dsn, log

__all__ = ["dsn", "log"]
