"""Django's connection of this thread, replaced for a while by one that awaits no answer for longer than it is given.

with limited("default", seconds=2):
    found = standings("default")

A frozen or unreachable server never times out by itself. Health probes run inside this block, to get an answer or
OperationalError within `seconds`.
Only what resolves the name of a host has limits of its own.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections

from django_events.sql.direct import own


@contextmanager
def limited(using: str, *, seconds: int) -> Iterator[None]:
    """Within it everything asks a new connection, which sees nothing of a transaction of the caller.

    A connection, or an answer, that takes longer raises OperationalError.
    """
    usual, brief = connections[using], own(using, connect_timeout=seconds)
    brief.Database = _Driver(seconds)
    connections[using] = brief
    try:
        yield
    finally:
        connections[using] = usual
        brief.close()


class _Driver:
    """What Django takes for psycopg: its errors and types, and a connection that has the limit."""

    def __init__(self, seconds: int) -> None:
        kind: Any = type("Limited", (_Limited,), {"seconds": seconds, "late": False})
        self.connect = kind.connect

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


class _Limited(psycopg.Connection[Any]):
    seconds: int
    late: bool  # whether one of this kind had no answer in time

    @classmethod
    def connect(cls, *arguments: Any, **options: Any) -> Any:
        """Not again where an answer was late: Django would, at the end of the transaction, and wait once more."""
        if cls.late:
            raise cls._too_late()
        return super().connect(*arguments, **options)

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(self._in_time(gen), *arguments, **options)

    def _in_time(self, answering: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """psycopg looks in again and again while nothing comes: then it is asked whether it is too late."""
        until = time.monotonic() + self.seconds
        try:
            awaited = next(answering)
            while True:
                awaited = answering.send((yield awaited))  # first what has arrived: after a suspension it isn't late
                if time.monotonic() > until:
                    self.pgconn.finish()  # nothing can be asked of it any more, not even to roll back
                    type(self).late = True
                    raise self._too_late()
        except StopIteration as answered:
            return answered.value

    @classmethod
    def _too_late(cls) -> psycopg.OperationalError:
        return psycopg.OperationalError(f"The database did not answer within {cls.seconds} s.")
