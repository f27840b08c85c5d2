"""The mark: up to which ticket of the buffer nothing can come any more.

A scan that started at the beginning would walk over the index entries of all rows that were moved
while an old snapshot is open. It starts at the mark instead. A mark must never pass a ticket that
can still commit, and transaction ids can't tell: a writer takes its ticket before it has one. Locks can: a
publisher holds its lock on the buffer from before it takes a ticket until its commit is visible.

So the transfer notes which writers hold that lock after it saw a ticket. When all of them are gone, everything up to
that ticket is visible or rolled back: it is final. A later move that took everything up to it makes it the mark.
"""

import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime

from django_events import sql

SQL = sql.beside(__name__)

MOST_CANDIDATES = 32
# How often to ask which writers may still commit a ticket below those that were seen: by events moved, and by time.
NOTE_EVERY_EVENTS = 1_000
NOTE_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ticket that becomes final when all of these writers are gone."""

    ticket: int
    writers: frozenset[str]


class OpenWriters:
    """The writers that may still commit, and the last final ticket: all up to it are visible, or never will be."""

    def __init__(self) -> None:
        self.final = 0
        self._candidates: deque[Candidate] = deque()

    def note(self, seen: int, writers: frozenset[str]) -> None:
        """Take notice of a ticket that was seen before `writers` were listed."""
        while self._candidates and not (self._candidates[0].writers & writers):
            self.final = max(self.final, self._candidates.popleft().ticket)
        newest = self._candidates[-1].ticket if self._candidates else self.final
        if seen <= newest:
            return
        if not writers:
            self._candidates.clear()
            self.final = seen
        elif len(self._candidates) < MOST_CANDIDATES:
            self._candidates.append(Candidate(seen, writers))


class FinalTickets:
    """The last final ticket as one transfer knows it, which asks the server now and then who may still commit."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.crashed = False  # since it was asked the first time: what was learnt before may be wrong
        self._open_writers = OpenWriters()
        self._counts_since: datetime | None = None
        self._seen = self._events = 0
        self._noted_at = 0.0

    @property
    def upper(self) -> int:
        return self._open_writers.final

    def saw(self, ticket: int) -> None:
        self._seen = max(self._seen, ticket)

    def note(self, moved: int) -> None:
        """After a batch of so many events."""
        self._events += moved
        now = time.monotonic()
        if self._events and (self._events >= NOTE_EVERY_EVENTS or now - self._noted_at >= NOTE_EVERY_SECONDS):
            [[writers, counts_since]] = sql.fetch(self.using, SQL.writers)
            if self._counts_since not in (None, counts_since):  # the server crashed, and a pooler didn't say so
                self.crashed = True
            self._counts_since = counts_since
            self._open_writers.note(self._seen, frozenset(writers))
            self._events, self._noted_at = 0, now
