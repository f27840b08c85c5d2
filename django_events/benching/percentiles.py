"""What measured durations were like: the average, and which one so many of them were no longer than.

LatencySummary.of([0.001, 0.002, 0.250]).p50
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

SHARES = (0.5, 0.9, 0.99, 1.0)


class LatencySummary(NamedTuple):
    """Durations in milliseconds. A percentile is one that was measured: nothing is interpolated."""

    events: int
    average: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Self | None":
        """Of durations in seconds; nothing of none."""
        ordered = sorted(seconds)
        if not ordered:
            return None
        milliseconds = [1_000 * percentile(ordered, share) for share in SHARES]
        return cls(len(ordered), 1_000 * math.fsum(ordered) / len(ordered), *milliseconds)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest one that at least so large a share of all is not above."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]
