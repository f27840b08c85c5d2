"""The open writers of this process: `close_writers()` closes them, and so does its exit. They start empty in a fork.

The package handles no signal. A process that a signal ends, or os._exit() like those of multiprocessing, runs nothing
at exit, and what its writers hold is lost: such a process closes them itself.
"""

import atexit
import logging
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Protocol
from weakref import WeakSet

from django_events.exceptions import EventsError

logger = logging.getLogger("django_events.writer")


class Writer(Protocol):
    def close(self, timeout: timedelta | None = None) -> None: ...

    def hurry(self) -> float: ...

    def _start_empty(self) -> None: ...


_writers: WeakSet[Writer] = WeakSet()
_watching = False
LEAST = 0.5  # seconds for a writer to be closed, after others have taken all the time


def close_writers(timeout: timedelta | None = None) -> None:
    """Close every open BufferedWriter of this process: what they took in is written first, by all at the same time.

    For the hook that a server calls before its process ends. Raises NotWritten when all are closed, if events were
    refused, or if for `timeout` (by default the longest `max_wait`) none was settled. Calling again does nothing.
    """
    if refusals := _close_all(timeout):
        for other in refusals[1:]:
            refusals[0].add_note(str(other))
        raise refusals[0]


def add(writer: Writer) -> None:
    """Close it when the interpreter exits, and let it start empty in a fork."""
    global _watching
    if not _watching:
        _watching = True
        atexit.register(_close_at_exit)
        os.register_at_fork(after_in_child=_start_empty)
    _writers.add(writer)


def discard(writer: Writer) -> None:
    _writers.discard(writer)


def close_quietly(writer: Writer) -> None:
    """Close a writer where another error must not be replaced by its own."""
    try:
        writer.close()
    except EventsError as error:
        _log(error)


def _close_all(timeout: timedelta | None = None) -> list[EventsError]:
    """They write at the same time, so together they wait no longer than the most patient one."""
    writers = list(_writers)
    patience = max((writer.hurry() for writer in writers), default=0.0)
    until = time.monotonic() + (patience if timeout is None else timeout.total_seconds())
    refusals = []
    for writer in writers:
        try:
            writer.close(timedelta(seconds=max(until - time.monotonic(), LEAST)))
        except EventsError as error:
            refusals.append(error)
    return refusals


def _close_at_exit() -> None:
    for error in _close_all():
        _log(error)


def _log(error: EventsError) -> None:
    with suppress(Exception):  # of a handler of the log: other writers are to be closed, too
        logger.error("%s", error)


def _start_empty() -> None:
    for writer in list(_writers):
        writer._start_empty()
