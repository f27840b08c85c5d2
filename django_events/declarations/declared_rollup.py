"""A roll-up as an app declares it: a stream consumer that keeps a table of figures, by time and by group."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar, Protocol, overload

from django_events.declarations.declared_consumer import DeclaredConsumer, Handler
from django_events.declarations.limits import check_number, is_storable
from django_events.outcomes import UpTo

COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
RESERVED = {"bucket", "count", "skipped"}
TIMES = ("published_at", "logged_at")
DAY = timedelta(days=1)
MOST_GROUPS = 1_000_000  # different groups of one roll-up
MOST_COLUMNS = 6  # by which it groups: an entry of the index has room for so much
UNTIL = "key until "  # a group by the part of the key before a text


class RollUpFigures(Protocol):
    """What `between()` returns, see `deriving.figures.RollUpRows`, which lies some floors above."""

    @property
    def columns(self) -> list[str]: ...

    def every(self, every: str | timedelta, *, tz: str = "UTC") -> "RollUpFigures": ...

    def by(self, *groups: str) -> "RollUpFigures": ...

    def filter(self, **groups: str) -> "RollUpFigures": ...

    def order_by(self, *columns: str) -> "RollUpFigures": ...

    def filled(self) -> "RollUpFigures": ...

    def up_to(self) -> list[UpTo]: ...

    def count(self) -> int: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...


Named = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class DeclaredRollUp(DeclaredConsumer):
    """Counts, sums, minima and maxima of the events of its topics, in buckets of time and by groups.

    Its rows in the database are those of a stream consumer, a `models.RollUp`, and a table of its own.
    """

    every: timedelta = timedelta(minutes=1)
    by: Named = ()
    sums: Named = ()
    mins: Named = ()
    maxs: Named = ()
    at: str = "published_at"
    groups: int = 10_000
    retention: timedelta | None = None
    derived: ClassVar[bool] = True

    def load(self) -> Handler:
        """What folds its events, instead of a handler."""
        fold: Handler = import_module("django_events.deriving.rolling_up").RollUpFold(self)
        return fold

    @property
    def measures(self) -> list[tuple[str, str, str]]:
        """Its figures in the order of their columns: the kind, the name, and the jsonpath of the number."""
        kinds = {"sum": self.sums, "min": self.mins, "max": self.maxs}
        return [(kind, name, path) for kind, named in kinds.items() for name, path in named]

    @property
    def made_by(self) -> dict[str, Any]:
        """What its table is made by, as it is kept in the row: a change of it needs the table made anew."""
        named = {name: dict(getattr(self, name)) for name in ("by", "sums", "mins", "maxs")}
        return {"every": self.every.total_seconds(), "at": self.at, **named}

    def derivation(self) -> Any:
        """How its table is filled, for those who make another one."""
        return import_module("django_events.deriving.refilling").RollUpFilling(self)

    def differs_from(self, made_by: dict[str, Any]) -> str:
        """What is declared otherwise than a table was made by; empty if nothing is."""
        now = self.made_by
        return ", ".join(
            f"{name}={_shown(value)} instead of {_shown(made_by.get(name))}"
            for name, value in now.items()
            if value != made_by.get(name)
        )

    def between(self, start: datetime, end: datetime, *, using: str | None = None) -> RollUpFigures:
        """The figures from `start` on and before `end`, of all groups together; see `deriving.figures.RollUpRows`."""
        reading = import_module("django_events.deriving.figures")
        rows: RollUpFigures = reading.RollUpRows(self, start, end, using=using)
        return rows

    def up_to(self, *, using: str | None = None) -> list[UpTo]:
        """Of each topic, up to which event its figures are true, and when that was logged; see `deriving.reached`."""
        found: list[UpTo] = import_module("django_events.deriving.reached").up_to(self, using=using)
        return found

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a roll-up."""
        yield from super().problems()
        what = f"Roll-up {self.name!r}"
        yield from self._problems_of_time(what)
        yield from self._problems_of_columns(what)
        yield from check_number(what, "groups", self.groups, 1, MOST_GROUPS)
        retention: Any = self.retention
        if retention is not None and (not isinstance(retention, timedelta) or retention <= timedelta(0)):
            yield f"{what} has retention={retention!r}, expected a timedelta above zero, or None to keep all."
        if self.start == "end":
            yield (
                f"{what} has start='end': a rebuild could not find out where that was, and would lose what is counted. "
                "Expected 'beginning', a datetime, or the id of the first event."
            )

    def _problems_of_time(self, what: str) -> Iterator[str]:
        every: Any = self.every
        if (
            not isinstance(every, timedelta)
            or not timedelta(seconds=1) <= every <= DAY
            or DAY % every
            or every.microseconds
        ):
            yield (
                f"{what} has every={every!r}, expected whole seconds that divide a day, from 1 second to 1 day, like "
                "timedelta(minutes=1)."
            )
        if self.at not in TIMES and not _is_path(self.at):
            yield f"{what} has at={self.at!r}, expected 'published_at', 'logged_at', or a jsonpath like '$.placed_at'."

    def _problems_of_columns(self, what: str) -> Iterator[str]:
        given = {option: getattr(self, option) for option in ("by", "sums", "mins", "maxs")}
        if wrong := {option: pairs for option, pairs in given.items() if not _are_pairs(pairs)}:
            for option, pairs in wrong.items():
                yield f"{what} has {option}={pairs!r}, expected jsonpaths by name, like {{'store': '$.store'}}."
            return
        if len(self.by) > MOST_COLUMNS:
            yield f"{what} has {len(self.by)} names in by=, expected at most {MOST_COLUMNS}."
        names = [name for name, _ in self.by] + [name for _, name, _ in self.measures]
        for name in names:
            if not isinstance(name, str) or not COLUMN.fullmatch(name) or name in RESERVED:
                yield (
                    f"{what} has the name {name!r}, expected small letters, digits and underscores, and none of "
                    f"{', '.join(sorted(RESERVED))}, which are columns of every roll-up."
                )
            elif names.count(name) > 1:
                yield f"{what} has the name {name!r} twice: each is a column of its table."
                return
        for name, source in self.by:
            if source not in ("type", "key") and not _is_path(source) and not _is_prefix(source):
                yield (
                    f"{what} has by={{{name!r}: {source!r}}}, expected a jsonpath like '$.store', 'type', 'key', or "
                    "'key until :' for what is before the first colon."
                )
        for _, name, path in self.measures:
            if not _is_path(path):
                yield f"{what} has {path!r} for {name!r}, expected the jsonpath of a number, like '$.total'."


def _are_pairs(given: Any) -> bool:
    return isinstance(given, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_path(source: Any) -> bool:
    """Whether it looks like a jsonpath. PostgreSQL says whether it is one, when `migrate` runs."""
    return is_storable(source) and re.match(r"\s*((strict|lax)\s+)?\$", source) is not None


def _is_prefix(source: Any) -> bool:
    return is_storable(source) and source.startswith(UNTIL) and len(source) > len(UNTIL)
