"""What streams to browsers send of an event that is the same for all of them: it is made once in a process.

texts.of(event, "json", lambda: written(event))

Nothing is decided here of who gets an event: a stream asks only for one that its own listener gave it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from django_events.live.feeds import MOST_BYTES, MOST_EVENTS
from django_events.received import ReceivedEvent


class SharedTexts:
    """The texts of the rows that were read last, as many as wait in one feed at most.

    A text belongs to a row as it was read, not to an address: one that was read anew, as after an erasure or a restore,
    has another text.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[tuple[int, str], tuple[Sequence[Any], bytes]] = {}  # a row that is kept here keeps its `id()`
        self._bytes = 0

    def of(self, event: ReceivedEvent, form: str, made: Callable[[], bytes]) -> bytes:
        """The text of an event in a form, made if it isn't known."""
        row = event.columns
        place = id(row), form
        with self._lock:
            known = self._texts.get(place)
        if known is not None:
            return known[1]
        text = made()
        with self._lock:
            if place not in self._texts:
                self._texts[place] = row, text
                self._bytes += len(text)
            while len(self._texts) > MOST_EVENTS or self._bytes > MOST_BYTES:
                _, dropped = self._texts.pop(next(iter(self._texts)))
                self._bytes -= len(dropped)
        return text

    def clear(self) -> None:
        """Keep none: no stream is open."""
        with self._lock:
            self._texts.clear()
            self._bytes = 0
