"""The journal of `stream_events`: how many batches count, and the next id of each topic that they don't hold yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_events.exporting.journal import FOLDER, Journal
from django_events.exporting.storage import Storage
from django_events.exporting.written_values import WrittenValues


@dataclass(frozen=True)
class Reached:
    """How far a topic is in the files: the next id comes next."""

    incarnation: str
    next: int


class Batches(Journal):
    """The journal of a stream: its last batch, and how far that got."""

    def __init__(self, storage: Storage, path: str, *, run: str | None = None) -> None:
        self.count = self.rows = 0
        self.reached: dict[str, Reached] = {}
        self._last: str | None = None
        self.values = WrittenValues(f"{path}/{FOLDER}/journal")
        super().__init__(storage, path, "stream_events", run=run)

    def finish(self, attempt: str, rows: int, reached: Mapping[str, Reached]) -> None:
        """Record this attempt as the next batch."""
        self._last = attempt
        self.count += 1
        self.rows += rows
        self.reached |= reached
        self._decide(attempt)

    def decided(self) -> dict[str, str]:
        return {self._last: f"batch={self.count - 1:012d}"} if self._last is not None else {}

    def content(self) -> dict[str, Any]:
        topics = {name: {"incarnation": one.incarnation, "next": one.next} for name, one in self.reached.items()}
        return {
            "batches": self.count,
            "rows": self.rows,
            "attempt": self._last,
            "topics": topics,
            **self.values.content(),
        }

    def take(self, record: Mapping[str, Any]) -> None:
        self.values.take(record)
        self.count, self.rows, self._last = record["batches"], record["rows"], record["attempt"]
        self.reached = {name: Reached(said["incarnation"], said["next"]) for name, said in record["topics"].items()}
        numbers = [self.count, self.rows, *(one.next for one in self.reached.values())]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(record)
        if (type(self._last) is not str) if self.count else (self._last is not None):
            raise ValueError(record)
