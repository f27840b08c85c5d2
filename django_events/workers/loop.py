"""The one loop of all workers: work until there is nothing to do, wait, reconnect when the database goes away."""

import logging
import random
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, cast

from django.db import DatabaseError, InterfaceError, connections
from psycopg import Connection, IsolationLevel

from django_events import sql, telemetry
from django_events.exceptions import NotReady
from django_events.sql.search_path import tables_missing
from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.worker")

FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0
MOST_DOUBLINGS = 10  # more than enough for the longest
LEFT_PAUSE = 0.05


class Exit(IntEnum):
    """Exit codes of a worker's process, for its supervisor."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    ABANDONED = 70
    UNREACHABLE = 75


class Worker(Protocol):
    """What the loop repeats."""

    using: str

    @property
    def left(self) -> bool:
        """Whether the last call of `work` left something undone that can be done soon."""

    def connect(self) -> None:
        """Connect to the database if necessary; called before each `work`."""

    def work(self, stop: Stop) -> int:
        """Do what is due, and return how much that was."""

    def wait(self, stop: Stop) -> None:
        """Return when there may be something to do again."""

    def reset(self) -> None:
        """The connection was lost: forget what was learnt on it."""

    def close(self) -> None:
        """Release what it has beside Django's connection."""


class Unreachable(Exception):
    """The database can't be reached."""


def run(
    worker: Worker, stop: Stop, *, once: bool = False, on_progress: Callable[[int], None] = lambda done: None
) -> int:
    """Repeat a worker until it is told to stop, or with `once` until nothing is left; returns how much it did.

    After a database is lost, the loop tries again with a backoff. If it can't be reached at the start, or is lost with
    `once`, Unreachable is raised, so that a supervisor sees it. NotReady is raised where our tables are missing.
    """
    total, failures, reached = 0, 0, False
    while not stop.requested:
        try:
            worker.connect()
            reached = True
            done = worker.work(stop)
        except (DatabaseError, InterfaceError) as error:
            if sql.kind_of(error) is sql.ErrorKind.TABLE_GONE:  # said here: another thread has another search_path
                raise NotReady(f"Working on {worker.using!r} failed. {tables_missing(worker.using)}") from error
            if not sql.kind_of(error).passes:
                raise
            connections[worker.using].close()
            worker.reset()
            if sql.kind_of(error) is sql.ErrorKind.LOST and (once or not reached):
                raise Unreachable(sql.said(error)) from error
            failures += 1
            _back_off(worker, stop, failures, error)
            continue
        if failures:
            about = {"database": worker.using}
            logger.info("The database %r works again, after %d tries.", worker.using, failures, extra=about)
        failures = 0
        total += done
        on_progress(done)
        if done:
            continue
        if worker.left:
            stop.wait(LEFT_PAUSE)
        elif once:
            break
        else:
            worker.wait(stop)
    return total


def connect_for_work(using: str) -> bool:
    """Connect at READ COMMITTED, where each statement sees what was committed before it; returns whether it is new."""
    wrapper = connections[using]
    new = wrapper.connection is None
    wrapper.ensure_connection()
    raw = cast("Connection[object]", wrapper.connection)
    if raw.isolation_level is not IsolationLevel.READ_COMMITTED:  # also on a connection that Django made by itself
        raw.isolation_level = IsolationLevel.READ_COMMITTED
    # A site may have AUTOCOMMIT off: then nothing would be committed.
    if not wrapper.get_autocommit() and not wrapper.in_atomic_block:
        wrapper.set_autocommit(True)
    return new


def close_others(using: str) -> None:
    """Close this thread's stale connections to other databases, as Django does after a request: handlers use them."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != using:
            connection.close_if_unusable_or_obsolete()


def _back_off(worker: Worker, stop: Stop, failures: int, error: Exception) -> None:
    pause = pause_after(failures)
    telemetry.DATABASE_FAILURES.tell(1, worker.using)
    said, about = sql.said(error), {"database": worker.using}
    logger.warning("The database %r failed, next try in %.1f s. %s", worker.using, pause, said, extra=about)
    stop.wait(pause)


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures of a database: twice as long each time, up to a limit, with jitter."""
    doubled = FIRST_RETRY * 2.0 ** min(failures - 1, MOST_DOUBLINGS)
    return min(doubled, LONGEST_RETRY) * random.uniform(0.75, 1.25)  # noqa: S311  # jitter


class RateMeter:
    """Counts what is done, and says once in a while how much it was per second."""

    def __init__(self, *, every: float = 10.0) -> None:
        self.every = every
        self._since, self._done = time.monotonic(), 0
        self._adding = threading.Lock()

    def add(self, done: int) -> tuple[int, float] | None:
        """Count; returns the total and the rate per second once in `every` seconds. Threads may share it."""
        with self._adding:
            self._done += done
            elapsed = time.monotonic() - self._since
            if elapsed < self.every:
                return None
            result = (self._done, self._done / elapsed)
            self._since, self._done = time.monotonic(), 0
            return result
