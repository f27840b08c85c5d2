"""The range of a topic's ids that one task reads, without its end; and ids that lie anywhere in a log."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

EVENTS_PER_TASK = 250_000


@dataclass(frozen=True)
class Range:
    """The events of a topic from `start` to before `end`."""

    topic: str
    topic_id: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


@dataclass(frozen=True)
class ChosenIds:
    """Some events of a topic, by their ids in rising order. Those that its log doesn't have are left out."""

    topic: str
    topic_id: int
    ids: Sequence[int]


def split(whole: list[Range], *, least: int) -> list[Range]:
    """Cut ranges into parts of about the same size, none of them empty.

    There are at least `least` parts, unless there are fewer events, and none has many more than EVENTS_PER_TASK.
    """
    total = sum(map(len, whole))
    if not total:
        return []
    parts = max(least, -(-total // EVENTS_PER_TASK))
    return [part for one in whole for part in cut(one, -(-len(one) * parts // total))]


def cut(whole: Range, parts: int) -> Iterator[Range]:
    parts = min(parts, len(whole))
    ends = [whole.start + len(whole) * index // parts for index in range(parts + 1)] if parts else []
    for start, end in pairwise(ends):
        yield replace(whole, start=start, end=end)
