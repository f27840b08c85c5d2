"""The open writers of this process: they are closed when it ends, and start empty in a fork.

A process that is killed, or ends by os._exit() like those of multiprocessing, closes nothing: there `with` does.
"""

import atexit
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import FrameType
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
LEAST = 0.5  # seconds for a writer to be closed at exit, after others have taken all the time


def add(writer: Writer) -> None:
    """Close it when the process ends. SIGTERM ends it as SystemExit does, unless somebody handles it already."""
    global _watching
    if not _watching:
        _watching = True
        atexit.register(_close_all)
        os.register_at_fork(after_in_child=_start_empty)
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.Handlers.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _exit)
    _writers.add(writer)


def discard(writer: Writer) -> None:
    _writers.discard(writer)


def close_quietly(writer: Writer, timeout: timedelta | None = None) -> None:
    """Close a writer where another error, or the end of the process, must not be replaced by its own."""
    try:
        writer.close(timeout)
    except EventsError as error:
        with suppress(Exception):  # of a handler of the log: other writers are to be closed, too
            logger.error("%s", error)


def _close_all() -> None:
    """They write at the same time, so together they wait no longer than the most patient one."""
    writers = list(_writers)
    until = time.monotonic() + max((writer.hurry() for writer in writers), default=0.0)
    for writer in writers:
        close_quietly(writer, timedelta(seconds=max(until - time.monotonic(), LEAST)))


def _start_empty() -> None:
    for writer in list(_writers):
        writer._start_empty()


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
