"""Something that is to be done once in a while, by who works anyway."""

import time


class NowAndThen:
    """True once in so many seconds, counted from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def __bool__(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
