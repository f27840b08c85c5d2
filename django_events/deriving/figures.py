"""Reading roll-ups: figures of a span of time, by larger buckets, in a time zone, by some of the groups.

    rows = revenue.between(monday, sunday).every("1 day", tz="Europe/Berlin").by("store").order_by("-revenue")
    for row in rows[:10]: row["bucket"], row["store"], row["count"], row["revenue"]

It is lazy, and pages like a QuerySet. It reads what the table has at that moment; `up_to` says how far that is.
"""

import re
from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, overload
from zoneinfo import ZoneInfo

from django.db import router

from django_events import models, sql
from django_events.declarations import DeclaredRollUp
from django_events.declarations.limits import is_storable
from django_events.deriving.reached import up_to
from django_events.deriving.rolling_up import longest_group
from django_events.exceptions import Invalid, NotReady, did_you_mean
from django_events.models.times import refuse_naive
from django_events.outcomes import UpTo

SQL = sql.beside(__name__)

UNITS = ("day", "week", "month", "quarter", "year")
SECONDS = {"second": 1, "minute": 60, "hour": 3_600}
HOUR, DAY = 3_600, 86_400
MOST_YEARS = 200
ALL = 2**62  # rows
_EVERY = re.compile(r"\s*(?:([0-9]{1,4})\s+)?([a-z]+?)s?\s*")

Row = dict[str, Any]


class RollUpRows:
    """Figures of a roll-up, as rows: dicts with `bucket`, the groups, `count`, `skipped`, and each measure.

    Without `every`, a row is a bucket as the roll-up has it. Without `by`, all groups are together. Sums are 0 where
    nothing was counted, minima and maxima None.
    """

    def __init__(self, declared: DeclaredRollUp, start: datetime, end: datetime, *, using: str | None = None) -> None:
        refuse_naive(start)
        refuse_naive(end)
        self._declared, self._start, self._end = declared, start, end
        self._using = using
        self._unit, self._seconds, self._tz = "", declared.every.total_seconds(), "UTC"
        self._groups: tuple[str, ...] = ()
        self._chosen: dict[str, str] = {}
        self._order: tuple[str, ...] = ()
        self._filled = False
        self._rows: list[Row] | None = None

    def every(self, every: str | timedelta, *, tz: str = "UTC") -> "RollUpRows":
        """Larger buckets: "5 minutes", "1 hour", "1 day", "1 week", "1 month", "1 quarter", "1 year", or a timedelta.

        They begin as clocks and calendars of the time zone say: a day of 23 or 25 hours is a bucket, and one of several
        hours begins at the same time each day.
        """
        unit, seconds = _length(every)
        if seconds % self._declared.every.total_seconds():
            raise Invalid(
                f"Roll-up {self._declared} counts in buckets of {self._declared.every}: {every!r} is not made of whole "
                "ones."
            )
        _refuse_uneven(self._declared, self._start, self._end, tz)
        return self._with(_unit=unit, _seconds=seconds, _tz=tz)

    def by(self, *groups: str) -> "RollUpRows":
        """A row for each bucket and group, by some of the names that the roll-up groups by."""
        self._refuse_unknown(groups)
        return self._with(_groups=groups)

    def filter(self, **groups: str) -> "RollUpRows":
        """Only what was counted in these groups: `filter(store="berlin")`."""
        self._refuse_unknown(groups)
        for name, group in groups.items():
            if not is_storable(group):
                raise Invalid(
                    f"{name}={group!r} is no group of roll-up {self._declared}: groups are texts, that of the number 5 "
                    "is '5', and where there is none it is ''."
                )
        longest = longest_group(self._declared)
        return self._with(_chosen={**self._chosen, **{name: group[:longest] for name, group in groups.items()}})

    def order_by(self, *columns: str) -> "RollUpRows":
        """In the order of these columns, with a minus the largest first; by default by bucket and groups."""
        known = self.columns
        for column in columns:
            if column.removeprefix("-") not in known:
                raise Invalid(f"There is no column {column!r} to order by. {did_you_mean(column, known)}")
        return self._with(_order=columns)

    def filled(self) -> "RollUpRows":
        """With a row for each bucket in which nothing was counted, of each group that there is in the span."""
        return self._with(_filled=True)

    @property
    def columns(self) -> list[str]:
        """The keys of each row, in order."""
        return ["bucket", *self._groups, "count", "skipped", *(name for _, name, _ in self._declared.measures)]

    def up_to(self) -> list[UpTo]:
        """Up to which event of each topic the figures are true; see `UpTo`.

        It is asked anew each time: ask before you read the rows, which have at least so much then.
        """
        return up_to(self._declared, using=self._alias)

    def count(self) -> int:
        """How many rows there are."""
        if self._rows is not None:
            return len(self._rows)
        statement = SQL.count_rows.on(rows=self._statement())
        [[rows]] = sql.fetch(self._alias, statement)
        return int(rows)

    def __len__(self) -> int:
        return len(self._fetched())

    def __iter__(self) -> Iterator[Row]:
        return iter(self._fetched())

    def __bool__(self) -> bool:
        return bool(self._fetched())

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """One row, or some, of which no others are fetched."""
        if self._rows is not None:
            return self._rows[index]
        if isinstance(index, int):
            if index < 0:
                raise ValueError("Negative indexing is not supported.")
            return self._fetch(index, 1)[0]
        if index.step is not None or (index.start or 0) < 0 or (index.stop or 0) < 0:
            raise ValueError("A slice of a roll-up has no step, and nothing negative.")
        start = index.start or 0
        return self._fetch(start, None if index.stop is None else max(index.stop - start, 0))

    def __repr__(self) -> str:
        return f"<RollUpRows of {self._declared}: {', '.join(self.columns)}>"

    @property
    def _alias(self) -> str:
        return self._using or str(router.db_for_read(models.RollUp))

    def _with(self, **changes: Any) -> "RollUpRows":
        other = copy(self)
        vars(other).update(changes, _rows=None)
        return other

    def _refuse_unknown(self, groups: Any) -> None:
        known = [name for name, _ in self._declared.by]
        for name in groups:
            if name not in known:
                raise Invalid(f"Roll-up {self._declared} has no group {name!r}. {did_you_mean(name, known)}")

    def _fetched(self) -> list[Row]:
        if self._rows is None:
            self._rows = self._fetch(0, None)
        return self._rows

    def _fetch(self, offset: int, limit: int | None) -> list[Row]:
        names, zone = self.columns, ZoneInfo(self._tz)
        found = sql.fetch(self._alias, self._statement(offset, ALL if limit is None else limit))
        rows = [dict(zip(names, row, strict=True)) for row in found]
        for row in rows:  # as seconds, because a site without time zones reads other times
            row["bucket"] = datetime.fromtimestamp(row["bucket"], zone)
        return rows

    def _statement(self, offset: int = 0, limit: int = ALL) -> sql.Statement:
        """The rows in their order."""
        start, end = sql.literal(self._start.isoformat()), sql.literal(self._end.isoformat())
        groups, bins = list(self._groups), _bins(self._unit, self._seconds, self._tz, start, end)
        counted = SQL.counted.on(
            table=self._table(),
            start=start,
            end=end,
            bin=bins.of_bucket,
            columns=[*(("r", name) for name in groups), SQL.total_counts, *self._totals()],
            chosen=sql.all_of(
                [SQL.is_in_group.on(column=name, group=sql.literal(one)) for name, one in self._chosen.items()]
            ),
            ordinals=[*range(1, len(groups) + 2)],
        )
        row, source = "c", SQL.counted_rows
        if self._filled:
            row = "g"
            source = SQL.filled_rows.on(
                bins=bins.all,
                groups=SQL.groups.on(groups=groups) if groups else SQL.no_groups,
                same=sql.all_of([SQL.is_same_group.on(column=name) for name in groups]),
            )
        return SQL.rows.on(
            counted=counted,
            begins=SQL.begins_locally.on(row=row, tz=sql.literal(self._tz))
            if bins.is_local
            else SQL.begins.on(row=row),
            columns=[*((row, name) for name in groups), SQL.counts, *self._figures()],
            source=source,
            order=self._ordered(),
            offset=offset,
            limit=limit,
        )

    def _totals(self) -> Iterator[sql.Statement]:
        for kind, name, _ in self._declared.measures:
            if kind == "sum":
                yield SQL.total_sum.on(name=name)
            elif kind == "min":
                yield SQL.total_min.on(name=name)
            else:
                yield SQL.total_max.on(name=name)

    def _figures(self) -> Iterator[sql.Statement]:
        for kind, name, _ in self._declared.measures:
            yield SQL.sum_or_zero.on(name=name) if kind == "sum" else SQL.extreme.on(name=name)

    def _ordered(self) -> list[sql.Statement]:
        """What was asked for, then bucket and groups, so that pages don't overlap."""
        columns, asked = self.columns, [name.removeprefix("-") for name in self._order]
        order = [*self._order, *(name for name in ("bucket", *self._groups) if name not in asked)]
        ordinals = [(columns.index(name.removeprefix("-")) + 1, name.startswith("-")) for name in order]
        return [
            SQL.descending.on(ordinal=ordinal) if down else SQL.ascending.on(ordinal=ordinal)
            for ordinal, down in ordinals
        ]

    def _table(self) -> str:
        row = models.RollUp.objects.using(self._alias).filter(name=self._declared.name).first()
        if row is None:
            raise NotReady(
                f"Roll-up {self._declared.name!r} has no table in the database {self._alias!r}. Run: manage.py migrate "
                f"--database {self._alias}"
            )
        if differing := self._declared.differs_from(row.made_by):
            raise NotReady(
                f"Roll-up {self._declared.name!r} is declared with {differing}, as its table was made in the database "
                f"{self._alias!r}. Make it anew: manage.py events rebuild {self._declared.name}"
            )
        return row.table


class _Bins(NamedTuple):
    """The buckets that are read: which one a row of the table is in, when one begins, and all of the span."""

    of_bucket: sql.Statement
    is_local: bool
    all: sql.Statement


def _bins(unit: str, seconds: float, tz: str, start: Any, end: Any) -> _Bins:
    zone, every = sql.literal(tz), sql.literal(f"{seconds:.0f} seconds")
    if unit:
        named, step = sql.literal(unit), sql.literal("3 months" if unit == "quarter" else f"1 {unit}")
        spanned = SQL.calendar.on(unit=named, tz=zone, step=step, start=start, end=end)
        return _Bins(SQL.bin_of_calendar.on(unit=named, tz=zone), True, spanned)
    if seconds > HOUR:
        spanned = SQL.clock.on(every=every, tz=zone, start=start, end=end)
        return _Bins(SQL.bin_of_clock.on(every=every, tz=zone), True, spanned)
    spanned = SQL.times.on(every=every, tz=zone, start=start, end=end)
    return _Bins(SQL.bin_of_time.on(every=every, tz=zone, start=start), False, spanned)


def _length(every: str | timedelta) -> tuple[str, float]:
    """A unit of the calendar, or how many seconds; both divide what is above them."""
    wrong = Invalid(
        f"{every!r} is no length of buckets: expected one that divides an hour or a day, like '5 minutes', '6 hours', "
        "or '1 day', '1 week', '1 month', '1 quarter', '1 year'."
    )
    if isinstance(every, timedelta):
        seconds = every.total_seconds()
    elif (found := _EVERY.fullmatch(every)) is None:
        raise wrong
    else:
        times, unit = int(found[1] or 1), found[2]
        if unit in UNITS and times == 1:
            return unit, DAY
        if unit not in SECONDS:
            raise wrong
        seconds = times * SECONDS[unit]
    if seconds == DAY:
        return "day", DAY
    if seconds != int(seconds) or not 1 <= seconds < DAY or (HOUR % seconds and (seconds % HOUR or DAY % seconds)):
        raise wrong
    return "", seconds


def _refuse_uneven(declared: DeclaredRollUp, start: datetime, end: datetime, tz: str) -> None:
    """Invalid for a time zone whose days don't begin where a bucket of the roll-up begins, or that isn't known."""
    try:
        zone = ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(f"{tz!r} is no time zone, expected a name like 'Europe/Berlin'.") from error
    years = range(start.year, min(end.year, start.year + MOST_YEARS) + 1)
    moments = [start, end, *(datetime(year, month, 1, tzinfo=UTC) for year in years for month in (1, 7))]
    for moment in moments:
        offset = moment.astimezone(zone).utcoffset() or timedelta(0)
        if offset % declared.every:
            raise Invalid(
                f"Roll-up {declared} counts in buckets of {declared.every}, and the clocks of {tz} are {offset} from "
                "UTC, which is not made of whole ones."
            )
