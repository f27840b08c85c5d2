"""Charts as SVG, drawn by the server: lines over time, with gaps where no samples were taken."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_events.observing.samples import per_second

WIDTH, HEIGHT = 600, 120
GAP = 2.5  # times the usual distance of two points
PERIODS = {
    "1h": (timedelta(hours=1), gettext_lazy("1 hour")),
    "6h": (timedelta(hours=6), gettext_lazy("6 hours")),
    "24h": (timedelta(hours=24), gettext_lazy("24 hours")),
    "48h": (timedelta(hours=48), gettext_lazy("48 hours")),
}
USUAL = "6h"


class Point(NamedTuple):
    """A value at a time."""

    at: datetime
    value: float


class Line(NamedTuple):
    """What one line shows."""

    label: str
    points: Sequence[Point]


class Drawn(NamedTuple):
    """A line as it is drawn: the paths of its pieces, and what it says in numbers."""

    label: str
    paths: list[str]
    last: float | None
    highest: float | None


class Chart(NamedTuple):
    """A chart without its markup, which is in chart.html."""

    title: str
    unit: str
    lines: list[Drawn]
    top: float
    start: datetime
    end: datetime

    @property
    def is_empty(self) -> bool:
        return not any(line.paths for line in self.lines)


def chart(title: str, unit: str, lines: Sequence[Line], *, start: datetime, end: datetime) -> Chart:
    """Draw lines on one scale, from zero or the lowest value to the highest."""
    values = [0.0, *(point.value for line in lines for point in line.points)]
    bottom = min(values)
    top = max(values) or (0 if bottom else 1)
    drawn = [
        Drawn(
            line.label,
            [_path(piece, bottom, top, start, end) for piece in pieces(line.points)],
            line.points[-1].value if line.points else None,
            max((point.value for point in line.points), default=None),
        )
        for line in lines
    ]
    return Chart(title, unit, drawn, top, start, end)


def rates(points: Sequence[Point]) -> list[Point]:
    """The growth of a count per second, between neighbouring points. Zero where it fell, as for a topic made anew."""
    return [
        Point(later.at, per_second(earlier.value, later.value, later.at - earlier.at))
        for earlier, later in pairwise(points)
        if later.at > earlier.at
    ]


def pieces(points: Sequence[Point]) -> list[list[Point]]:
    """Split the points at the gaps between them."""
    if not points:
        return []
    steps = sorted(later.at - earlier.at for earlier, later in pairwise(points))
    longest = steps[len(steps) // 2] * GAP if steps else timedelta(0)
    found = [[points[0]]]
    for earlier, later in pairwise(points):
        if later.at - earlier.at > longest:
            found.append([])
        found[-1].append(later)
    return found


def _path(points: Sequence[Point], bottom: float, top: float, start: datetime, end: datetime) -> str:
    whole = max((end - start).total_seconds(), 1)
    corners = [
        (WIDTH * (point.at - start).total_seconds() / whole, HEIGHT * ((top - point.value) / (top - bottom)))
        for point in points
    ]
    moves = " ".join(f"L{x:.1f} {y:.1f}" for x, y in corners)
    return f"M{moves[1:]}" if len(corners) > 1 else f"M{moves[1:]}h0.1"  # a point of its own is a dot


def period_of(request: HttpRequest) -> tuple[str, timedelta]:
    """The period that a page is asked for, with its name."""
    name = request.GET.get("period", USUAL)
    name = name if name in PERIODS else USUAL
    return name, PERIODS[name][0]


def periods() -> list[tuple[str, "str | Promise"]]:
    """The choices, with their labels."""
    return [(name, label) for name, (_period, label) in PERIODS.items()]
