"""What is wrong with a database: each offender by its name, and only so many of a kind, however many there are.

offenders = Offenders()
offenders.add("gap", "orders", id=1043, what="…", expected="…", remedy="…")
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from django_events.observing.findings import Finding, Subject

SHOWN = 20  # of a kind; the rest is counted
ERASED = "^erased-[0-9a-f]{32}$"  # what stands in the place of a key that was erased


class Offenders:
    """The first offenders of each kind, and how many there are."""

    def __init__(self) -> None:
        self.totals = Counter[str]()
        self._first: dict[str, list[Finding]] = {}

    def __iter__(self) -> Iterator[Finding]:
        for of_kind in self._first.values():
            yield from of_kind

    def __len__(self) -> int:
        return self.totals.total()

    @property
    def more(self) -> dict[str, int]:
        """How many of each kind there are beside those that are kept."""
        rest = {kind: total - len(self._first.get(kind, ())) for kind, total in self.totals.items()}
        return {kind: number for kind, number in rest.items() if number}

    def add(
        self,
        kind: str,
        topic: str | None,
        what: str,
        expected: str,
        remedy: str,
        *,
        consumer: str | None = None,
        partition: int | None = None,
        id: int | None = None,
    ) -> None:
        """Count an offender, and keep it if it is one of the first of its kind."""
        self.totals[kind] += 1
        first = self._first.setdefault(kind, [])
        if len(first) < SHOWN:
            subject = Subject(consumer, topic, partition, id)
            first.append(Finding(kind, "error", subject, what, remedy, {"expected": expected}))

    def count(self, kind: str, number: int) -> None:
        """Count some that were not looked at one by one."""
        self.totals[kind] += number

    def count_unlisted(self, kind: str, totals: Sequence[tuple[Any, int]]) -> None:
        """Count those that a statement found and didn't list: of each that it did, the group and how many are in it."""
        self.count(kind, sum(dict(totals).values()) - len(totals))
