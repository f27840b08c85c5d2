"""What the overview tells of each database where there are several, asked of all of them at the same time.

for one in summaries(["default", "west"]):
    ...
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError

from django_events.admin.pages import reason
from django_events.log.inventory import next_scheduled, waiting
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.sql import said
from django_events.sql.each import Answer, in_each

SECONDS = 5  # for the connection, and for each answer: the page waits no longer for a database that is away


class Figures(NamedTuple):
    """A database in a line. What is counted up to a limit is that or more."""

    errors: int
    warnings: int
    buffered: int
    buffered_more: bool
    oldest: timedelta | None
    consumers: int
    lag: int
    lag_more: bool
    dead: int
    dead_more: bool


class DatabaseSummary(NamedTuple):
    """The figures of a database, or a sentence that says why there are none, and what the database said."""

    alias: str
    figures: Figures | None
    unavailable: str = ""
    details: str = ""


def summaries(aliases: Iterable[str]) -> list[DatabaseSummary]:
    """A summary of each of these databases. One that gives no answer in time says so in its place."""
    return [_summary(using, answer) for using, answer in in_each(aliases, _figures, seconds=SECONDS).items()]


def _figures(using: str) -> Figures:
    in_buffer, consumers = waiting(using), standings(using)
    found = find_problems(using, in_buffer, next_scheduled(using), consumers)
    errors = sum(one.severity == "error" for one in found)
    return Figures(
        errors=errors,
        warnings=len(found) - errors,
        buffered=sum(one.events for one in in_buffer),
        buffered_more=any(one.more for one in in_buffer),
        oldest=max((one.age for one in in_buffer), default=None),
        consumers=len(consumers),
        lag=sum(one.lag for one in consumers),
        lag_more=any(one.more_lag for one in consumers),
        dead=sum(one.dead_letters for one in consumers),
        dead_more=any(one.more_dead_letters for one in consumers),
    )


def _summary(using: str, answer: Answer[Figures]) -> DatabaseSummary:
    error = answer.error
    if error is None:
        return DatabaseSummary(using, answer.value())
    if not isinstance(error, DatabaseError | InterfaceError) or (told := reason(error, using)) is None:
        raise error
    return DatabaseSummary(using, None, told, said(error))
