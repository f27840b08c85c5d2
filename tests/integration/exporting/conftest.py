"""The log that is exported."""

from tests.support.logs import dsn, log

__all__ = ["dsn", "log"]
