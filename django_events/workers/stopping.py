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
    """A request to stop that a wait notices at once; it has a file descriptor, so a poll does too."""

    def __init__(self) -> None:
        self.requested = False
        self._receiver, self._sender = socket.socketpair()

    def request(self) -> None:
        if not self.requested:
            self.requested = True
            self._sender.send(b"\0")

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wait(self, seconds: float | None, *others: int) -> None:
        """Wait, at most so long if not for ever, for the request or for data on one of the other descriptors."""
        if not self.requested:
            # Not select(), which takes no descriptor above 1,023.
            poll = select.poll()
            for descriptor in (self.fileno(), *others):
                poll.register(descriptor, select.POLLIN)
            poll.poll(None if seconds is None else seconds * 1_000)

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
        yield stop
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        stop.close()
