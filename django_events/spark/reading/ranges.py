"""What one task reads: a range of a topic's ids, its end excluded."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

EVENTS_PER_TASK = 250_000


@dataclass(frozen=True)
class Range(InputPartition):
    """The events of a topic from `start` to before `end`."""

    topic: str
    topic_id: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.start, 0)


def split(whole: list[Range], *, least: int) -> list[Range]:
    """Cut ranges into even parts, at least so many where there are as many events, none of them empty."""
    total = sum(map(len, whole))
    if not total:
        return []
    parts = max(least, -(-total // EVENTS_PER_TASK))
    return [part for one in whole for part in _cut(one, -(-len(one) * parts // total))]


def _cut(whole: Range, parts: int) -> Iterator[Range]:
    parts = min(parts, len(whole))
    ends = [whole.start + len(whole) * place // parts for place in range(parts + 1)] if parts else []
    for start, end in pairwise(ends):
        yield replace(whole, start=start, end=end)
