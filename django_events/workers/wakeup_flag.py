"""A wake-up flag between threads.

flag = WakeupFlag()
flag.set()  # from any thread
if flag.wait(stop, 0.5):
    ...
"""

import socket
import threading
import time

from django_events.workers.stopping import Stop


class WakeupFlag:
    """Thread-safe, with a file descriptor. Setting it twice before it is consumed wakes one waiter once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receiver, self._sender = socket.socketpair()
        self._is_set = self._closed = False

    def set(self) -> None:
        with self._lock:
            if not self._is_set and not self._closed:
                self._is_set = True
                self._sender.send(b"\0")

    def consume(self) -> bool:
        """Clear the flag; returns whether it was set."""
        with self._lock:
            was_set, self._is_set = self._is_set, False
            if was_set:
                self._receiver.recv(1)
            return was_set

    def wait(self, stop: Stop, seconds: float) -> bool:
        """Wait, at most so long, until the flag is set or a stop is requested; returns whether it consumed the flag.

        A set flag wakes all waiting threads, and one of them consumes it. The others wait for the rest of their time.
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
        """Close the descriptor. Setting the flag does nothing from now on."""
        with self._lock:
            self._is_set, self._closed = False, True
            self._receiver.close()
            self._sender.close()
