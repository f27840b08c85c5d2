"""A bell between threads: whoever rings it lets one go on that waits for it.

wakeup = WakeupFlag()
wakeup.set()  # from any thread
if wakeup.wait(stop, 0.5):
    ...
"""

import socket
import threading
import time

from django_events.workers.stopping import Stop


class WakeupFlag:
    """Rings that nobody took yet are one ring. It has a file descriptor, so a select notices it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiver, self._sender = socket.socketpair()
        self._rung = self._closed = False

    def set(self) -> None:
        with self._lock:
            if not self._rung and not self._closed:
                self._rung = True
                self._sender.send(b"\0")

    def consume(self) -> bool:
        """Take the ring, if there is one."""
        with self._lock:
            rung, self._rung = self._rung, False
            if rung:
                self._receiver.recv(1)
            return rung

    def wait(self, stop: Stop, seconds: float) -> bool:
        """Wait, at most so long, for a ring or a request to stop; whether it was a ring.

        A ring wakes everybody who waits, and one of them takes it: the others wait for the rest of their time.
        """
        deadline = time.monotonic() + seconds
        while not stop.requested:
            if self.consume():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                break
            stop.wait(left, self.fileno())
        return False

    def fileno(self) -> int:
        return self._receiver.fileno()

    def close(self) -> None:
        """Others may still ring: nobody hears it."""
        with self._lock:
            self._rung, self._closed = False, True
            self._receiver.close()
            self._sender.close()
