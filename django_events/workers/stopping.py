"""Stopping on signals: the first asks the worker to finish what is in hand, the second ends it at once.

    with stop_on_signals() as stop:
        while not stop.requested:
            ...
            stop.wait(0.5)
"""

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """A request to stop that a wait notices at once; it has a file descriptor, so a select does too."""

    def __init__(self) -> None:
        self.requested = False
        self._receiver, self._sender = socket.socketpair()

    def request(self) -> None:
        if not self.requested:
            self.requested = True
            self._sender.send(b"\0")

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wait(self, seconds: float, *others: int) -> None:
        """Wait, at most so long, for the request or for data on one of the other descriptors."""
        if not self.requested:
            select.select([self, *others], [], [], seconds)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a request to stop. The second signal does what it always did."""
    stop = Stop()
    before = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.request()
        for number, handler in before.items():
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
