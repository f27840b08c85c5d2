"""What the page of a consumer shows of the roll-up that it keeps: its table, its groups, and its figures over time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from django.utils.translation import gettext as _

from django_events import declarations, sql
from django_events.admin.charts import Chart, Line, Point, chart
from django_events.declarations import DeclaredRollUp
from django_events.deriving.rollups import has_table, known_groups
from django_events.models import Consumer, RollUp

LARGEST = 10**300
POINTS = 100  # of a line, about
BARS = 50  # that ids tell of: each is looked for by halving
STEPS = (60, 300, 900, 1_800, 3_600, 21_600, 86_400)  # seconds


class ShownRollUp(NamedTuple):
    """The row of a roll-up, and how many groups are known; None where it has none."""

    row: RollUp
    groups: int | None


def rollup_of(using: str, consumer: Consumer) -> ShownRollUp | None:
    """The roll-up that a consumer keeps true, if it does."""
    row = RollUp.objects.using(using).filter(name=consumer.name).first()
    return None if row is None else ShownRollUp(row, known_groups(using, row))


def rollup_charts(using: str, shown: ShownRollUp, period: timedelta) -> list[Chart]:
    """Its figures, of all groups together; none where this process doesn't declare them as the table was made."""
    declared = declared_as_made(using, shown.row.name)
    if declared is None:
        return []
    end = sql.now(using)
    return list(_charts(using, declared, end - period, end))


def declared_as_made(using: str, name: str) -> DeclaredRollUp | None:
    """A roll-up that has its table, and that this process declares as that was made."""
    declared = next((one for one in declarations.consumers if one.name == name), None)
    row = RollUp.objects.using(using).filter(name=name).first()
    if row is None or not isinstance(declared, DeclaredRollUp) or declared.differs_from(row.made_by):
        return None
    return declared if has_table(using, row) else None


def step_of(period: timedelta, declared: DeclaredRollUp | None = None) -> int:
    """The shortest step, in seconds, of which not too many are in a period, and that is made of whole buckets."""
    own, most = (declared.every.total_seconds(), POINTS) if declared else (1, BARS)
    least = period.total_seconds() / most
    return next((step for step in STEPS if step >= least and step % own == 0), STEPS[-1])


def _drawn(figure: int | Decimal) -> float:
    """A figure as a chart can have it: one may have more digits than a float."""
    return float(max(-LARGEST, min(figure, LARGEST)))


def _charts(using: str, declared: DeclaredRollUp, start: datetime, end: datetime) -> Iterator[Chart]:
    seconds = step_of(end - start, declared)
    # A bucket of a day began before the last hours: the step in which the chart begins is counted as a whole.
    first = datetime.fromtimestamp(start.timestamp() // seconds * seconds, UTC)
    rows = list(declared.between(first, end, using=using).every(timedelta(seconds=seconds)).filled())

    def line(label: str, name: str) -> Line:
        points = [Point(max(row["bucket"], start), _drawn(row[name])) for row in rows if row[name] is not None]
        return Line(label, points)

    of_step = _("in %(minutes)s min") % {"minutes": f"{seconds // 60:,}"}
    yield chart(
        _("Counted"), of_step, [line(_("counted"), "count"), line(_("skipped"), "skipped")], start=start, end=end
    )
    for kind, name, _path in declared.measures:
        yield chart(name, of_step, [line(kind, name)], start=start, end=end)
