"""A clock as an app declares it: a topic gets an event at each tick."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from django_events.declarations.cron import is_zone, wrong_cron
from django_events.declarations.limits import is_storable
from django_events.declarations.operable import Pausable

Missed = Literal["latest", "all", "skip"]
Overlap = Literal["allow", "skip"]
LONGEST_NAME = 300


@dataclass(frozen=True, kw_only=True)
class DeclaredClock(Pausable):
    """Publishes an event of one type at the times of a cron expression. Its row in the database is `models.Clock`."""

    name: str
    topic: str
    cron: str
    tz: str = "UTC"
    type: str
    key: str | None = None
    value: Any = field(default=None, repr=False, hash=False)  # payloads are kept out of logs
    missed: Missed = "latest"
    overlap: Overlap = "allow"
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a clock."""
        if not is_storable(self.name) or not 0 < len(self.name) <= LONGEST_NAME:
            yield f"Clock name {self.name!r} is not valid, expected a text of at most {LONGEST_NAME} characters."
        if wrong := wrong_cron(self.cron):
            yield f"Clock {self.name!r} has cron={self.cron!r}: {wrong}."
        if not is_zone(self.tz):
            yield f"Clock {self.name!r} has tz={self.tz!r}, expected the name of a time zone, like 'Europe/Berlin'."
        if not isinstance(self.type, str) or not self.type:
            yield f"Clock {self.name!r} has type={self.type!r}, expected the type of its events, like 'nightly'."
        if self.missed not in get_args(Missed):
            yield f"Clock {self.name!r} has missed={self.missed!r}, expected one of {', '.join(get_args(Missed))}."
        if self.overlap not in get_args(Overlap):
            yield f"Clock {self.name!r} has overlap={self.overlap!r}, expected one of {', '.join(get_args(Overlap))}."
        elif self.overlap == "skip" and self.missed == "all":
            yield (
                f"Clock {self.name!r} has missed='all' and overlap='skip', which contradict each other: all the ticks "
                "of an outage come at once, and one alone may be unhandled. Take missed='latest'."
            )
