"""When each event of a measurement was due, published and handled, by one clock of this process.

An event is counted from the moment it was due, also when its publisher is late: else a database that stops for a
second would look as if only one event had waited for it.
"""

import threading
import time
from array import array
from collections.abc import Iterator, Sequence

clock = time.perf_counter


class Timings:
    """For a number of events that is known beforehand, and several consumers. Threads may share it."""

    def __init__(self, events: int, consumers: int) -> None:
        self.events = events
        self.published = self.calls = 0
        self.again = 0  # handled a second time, because a batch was
        self.logged = 0
        self.started = clock()
        self._due = array("d", bytes(8 * events))
        self._committed = array("d", bytes(8 * events))
        self._handled = [array("d", bytes(8 * events)) for _ in range(consumers)]
        self.handled = [0] * consumers
        self._taken = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        self.started = clock()

    def take(self, step: int) -> range:
        """The next events to publish, for one publisher alone; none if all are taken."""
        with self._lock:
            first, self._taken = self._taken, min(self._taken + step, self.events)
            return range(first, self._taken)

    def note_due(self, numbers: Sequence[int], at: float) -> None:
        for n in numbers:
            self._due[n] = at

    def note_committed(self, numbers: Sequence[int]) -> None:
        now = clock()
        for n in numbers:
            self._committed[n] = now
        with self._lock:
            self.published += len(numbers)
            self.calls += 1

    def note_handled(self, consumer: int, numbers: Sequence[int]) -> None:
        now, times, new = clock(), self._handled[consumer], 0
        with self._lock:
            for n in numbers:
                if not times[n]:
                    times[n] = now
                    new += 1
            self.handled[consumer] += new
            self.again += len(numbers) - new

    @property
    def in_flight(self) -> int:
        """How many events are published and not through, where they are least far."""
        return self.published - min(self.logged, *self.handled, self.published)

    def to_commit(self) -> Iterator[float]:
        """From due to committed, as the publisher hears of it."""
        return (done - due for due, done in zip(self._due, self._committed, strict=True) if done)

    def to_handler(self, consumer: int, *, since_commit: bool = False) -> Iterator[float]:
        """To the handler, from when it was due or committed; 0 if the publisher had not heard of its commit yet."""
        since = self._committed if since_commit else self._due
        pairs = zip(since, self._handled[consumer], strict=True)
        return (max(handled - began, 0.0) for began, handled in pairs if began and handled)

    @property
    def seconds_of_publishing(self) -> float:
        return max(max(self._committed, default=0.0) - self.started, 0.0)

    def seconds_of_handling(self, consumer: int) -> float:
        return max(max(self._handled[consumer], default=0.0) - self.started, 0.0)
