"""The mark: up to which id of the buffer nothing can come any more.

A scan that started at the beginning would walk over the index entries of all rows that were moved
while an old snapshot is open. It starts at the mark instead. A mark must never pass an id that can
still commit, and transaction ids can't tell: a writer takes its id before it has one. Locks can: a
publisher holds its lock on the buffer from before it takes an id until its commit is visible.

So, after an id was seen, note who holds that lock. When all of them are gone, everything up to that
id is visible or rolled back. A later move that took everything up to the id makes it the mark.
"""

from collections import deque
from dataclasses import dataclass

MOST_CANDIDATES = 32


@dataclass(frozen=True, slots=True)
class Candidate:
    id: int
    writers: frozenset[str]


class Horizon:
    """Which ids of the buffer are settled: all at or below are visible, or never will be."""

    def __init__(self) -> None:
        self.settled = 0
        self._candidates: deque[Candidate] = deque()

    def note(self, seen: int, writers: frozenset[str]) -> None:
        """Take notice of an id that was seen before `writers` were listed."""
        while self._candidates and not (self._candidates[0].writers & writers):
            self.settled = max(self.settled, self._candidates.popleft().id)
        newest = self._candidates[-1].id if self._candidates else self.settled
        if seen <= newest:
            return
        if not writers:
            self._candidates.clear()
            self.settled = seen
        elif len(self._candidates) < MOST_CANDIDATES:
            self._candidates.append(Candidate(seen, writers))
