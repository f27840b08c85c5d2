"""How long to wait for what moves: as long as it does."""

import time

STANDSTILL = 60.0  # seconds without any progress
TELL_EVERY = 5.0  # seconds


class Patience:
    """A deadline that begins anew with each progress: a slow machine is no standstill."""

    def __init__(self, seconds: float = STANDSTILL, *, tell_every: float = TELL_EVERY) -> None:
        self.seconds = seconds
        self._tell_every = tell_every
        self._seen: object = None
        self._moved_at = self._told_at = time.monotonic()

    def is_over(self, seen: object) -> bool:
        """Whether what is seen is the same as for so many seconds."""
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
        return now - self._moved_at > self.seconds

    def is_time_to_tell(self) -> bool:
        """Whether the last time is long ago; if so, the next interval begins."""
        now = time.monotonic()
        if now - self._told_at < self._tell_every:
            return False
        self._told_at = now
        return True
