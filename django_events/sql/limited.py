"""Questions that are asked on a connection which awaits no answer for longer than it is given.

found = limited("default", lambda: standings("default"), seconds=2)

A frozen or unreachable server never times out by itself. Health probes ask this way, to get an answer or
OperationalError within `seconds`.
Only what resolves the name of a host has limits of its own.
"""

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import psycopg
from django.db import connections

T = TypeVar("T")


def limited(using: str, ask: Callable[[], T], *, seconds: int) -> T:
    """Call `ask` in a thread, whose connection is new and sees nothing of a transaction of the caller.

    A connection, or an answer, that takes longer raises OperationalError. Django keeps connections per thread, so the
    caller's is not touched.
    """

    def asked() -> T:
        connection: Any = connections[using]
        options = {**connection.settings_dict["OPTIONS"], "pool": False, "connect_timeout": seconds}
        connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}
        connection.Database = _Driver(seconds)
        try:
            return ask()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1, "django_events limited") as thread:
        return thread.submit(copy_context().run, asked).result()


def answering_within(seconds: float, *, whole: bool = True) -> "type[psycopg.Connection[Any]]":
    """A class of connections that raise OperationalError where an answer takes longer, and are of no use then.

    If the answer need not be `whole` by then, the seconds count from the last that came of it: a large one on a slow
    network takes as long as it takes.
    """
    return type("Limited", (_Limited,), {"seconds": seconds, "whole": whole, "late": False})


class _Driver:
    """What Django takes for psycopg: its errors and types, and a connection that has the limit."""

    def __init__(self, seconds: int) -> None:
        self.connect = answering_within(seconds).connect

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


class _Limited(psycopg.Connection[Any]):
    seconds: float
    whole: bool
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
                ready = yield awaited
                awaited = answering.send(ready)  # first what has arrived: after a suspension it isn't late
                if ready and not self.whole:
                    until = time.monotonic() + self.seconds
                elif time.monotonic() > until:
                    self.pgconn.finish()  # nothing can be asked of it any more, not even to roll back
                    type(self).late = True
                    raise self._too_late()
        except StopIteration as answered:
            return answered.value

    @classmethod
    def _too_late(cls) -> psycopg.OperationalError:
        return psycopg.OperationalError(f"The database did not answer within {cls.seconds:g} s.")
