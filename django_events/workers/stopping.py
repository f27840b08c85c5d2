"""Stopping on signals: the first one asks the worker to finish its turn, the second one ends the process.

with stop_on_signals() as stop:
    while not stop.requested:
        ...
        stop.wait(0.5)
"""

import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Stop:
    """A request to stop that a wait notices at once; it has a file descriptor, so a poll does too."""

    def __init__(self) -> None:
        self.requested = False
        self._receiver, self._sender = socket.socketpair()
        self._signalled: socket.socket | None = None  # readable after a signal, whichever thread received it

    def request(self) -> None:
        if not self.requested:
            self._sender.send(b"\0")  # first: one that sees `requested` may end, and close the socket
            self.requested = True

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wait(self, seconds: float | None, *others: int) -> None:
        """Wait, at most so long if not for ever, for the request or for data on one of the other descriptors."""
        if not self.requested:
            self._poll(seconds, self.fileno(), *others)

    def wait_until_requested(self, other: "Stop") -> None:
        """Wait for another request, whether this one is made or not. Handlers of signals run meanwhile."""
        while other.fileno() not in self._poll(None, other.fileno()):
            pass

    def _poll(self, seconds: float | None, *descriptors: int) -> set[int]:
        """Wait for data on any of them, and return on which there is some; a signal ends it too."""
        # Python runs signal handlers in the main thread, so only that thread may consume the byte that announces one.
        signalled = self._signalled if threading.current_thread() is threading.main_thread() else None
        poll = select.poll()  # not select(), which takes no descriptor above 1,023
        for descriptor in (*descriptors, *([signalled.fileno()] if signalled else [])):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1_000)}
        if signalled:
            with suppress(BlockingIOError):
                signalled.recv(4_096)
        return ready

    @contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Let any signal end a wait of the main thread, so that its handler runs.

        The kernel may give a signal to another thread, as to a process that was frozen and is continued: then the main
        thread's poll isn't interrupted, and the handler would run when something else ends it.
        """
        self._signalled, noting = socket.socketpair()
        with self._signalled, noting:
            self._signalled.setblocking(False)
            noting.setblocking(False)
            before = signal.set_wakeup_fd(noting.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(before)
                self._signalled = None

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a request to stop. The second one ends the process."""
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.request()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with stop.woken_by_signals():
            yield stop
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        stop.close()


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
