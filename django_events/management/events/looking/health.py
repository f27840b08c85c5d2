"""`manage.py events health`: one line and an exit code, for the probes of workers."""

from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db import OperationalError

from django_events import health, sql
from django_events.consuming.registered import registered
from django_events.log import inventory
from django_events.management.events.subcommand import Subcommand, whole_number
from django_events.management.reporting import Report
from django_events.observing import lag
from django_events.phrases import count, duration
from django_events.sql.limited import limited
from django_events.workers.loop import Exit, Unreachable

AT_REST = ("paused", "stopped")  # a person's business: a worker that is started again changes nothing
LIMITS = {"statement_timeout": f"{health.SECONDS}s", "lock_timeout": "1s"}
MOST_COUNTED = 2**31  # so many are never counted in time


def look(using: str, *, max_lag: int | None, max_age: timedelta | None, consumer: str | None, **options: Any) -> Report:
    """Out of reach has an exit code of its own, 75; the others are 0 and 1. It is 75 too if no answer comes in time."""
    problem = health.problem(using)
    if problem is not None:
        told = f"{problem.what} {problem.remedy}".strip()
        if problem.kind == "database":
            raise Unreachable(told)
        return _report(told, healthy=False, reason=problem.kind)
    try:
        if consumer is not None:
            return limited(using, lambda: _of_consumer(using, consumer, max_lag, max_age), seconds=health.SECONDS)
        return limited(using, lambda: _of_transfer(using, max_lag, max_age), seconds=health.SECONDS)
    except OperationalError as error:
        if sql.kind_of(error).passes:
            raise Unreachable(sql.said(error)) from error
        raise


def _of_transfer(using: str, max_lag: int | None, max_age: timedelta | None) -> Report:
    events, more, age = inventory.buffered(using, counted=_counted(inventory.COUNTED, max_lag), **LIMITS)
    told = f"{count(events, 'event', more=more)} in the buffer" + (
        f", the oldest for {duration(age)}." if events else "."
    )
    return _judged(told, "transfer", events, more, age, max_lag, max_age)


def _of_consumer(using: str, name: str, max_lag: int | None, max_age: timedelta | None) -> Report:
    with sql.batch(using, **LIMITS):
        found = lag.standings(using, registered(using, name), counted=_counted(lag.COUNTED, max_lag))
        active = [one for one in found if one.paused_at is None and one.state not in AT_REST]
        waits = lag.oldest_waits(using, [one.consumer_id for one in active if one.lag])
    events, more = sum(one.lag for one in active), any(one.more_lag for one in active)
    age = max(waits.values(), default=timedelta(0))
    parts = [_behind(name, events, more, age)] if active else []
    for one in found:
        if one not in active:
            state, lag_of_it = "paused" if one.paused_at else one.state, count(one.lag, "event", more=one.more_lag)
            parts.append(f"{name} is {state} on {one.topic}, {lag_of_it} behind: not counted.")
    return _judged(" ".join(parts), "consumer", events, more, age, max_lag, max_age)


def _behind(name: str, events: int, more: bool, age: timedelta) -> str:
    told = f"{name} is {count(events, 'event', more=more)} behind"
    return told + (f", the oldest for {duration(age)}." if events else ".")


def _counted(usual: int, max_lag: int | None) -> int:
    """Up to how many events to count: enough to see that a limit is exceeded."""
    return usual if max_lag is None else min(max(usual, max_lag + 1), MOST_COUNTED)


def _judged(
    told: str, reason: str, events: int, more: bool, age: timedelta, max_lag: int | None, max_age: timedelta | None
) -> Report:
    exceeded = []
    if max_lag is not None and events > max_lag:
        exceeded.append(count(max_lag, "event"))
    if max_age is not None and age > max_age:
        exceeded.append(f"{max_age.total_seconds():,g} s")
    if exceeded:
        told += f" That is more than {' and '.join(exceeded)}."
    return _report(told, healthy=not exceeded, reason=reason, lag=events, more_lag=more, age=age)


def _report(told: str, *, healthy: bool, reason: str, **seen: Any) -> Report:
    data = {"healthy": healthy, "reason": None if healthy else reason, "told": told, **seen}
    return Report(data, f"{'ok' if healthy else 'unhealthy'}: {told}", code=Exit.DONE if healthy else Exit.FAILED)


def _seconds(text: str) -> timedelta:
    try:
        time = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is no number of seconds, expected one like 60.") from None
    if time < timedelta(0):
        raise ArgumentTypeError(f"{text} is less than nothing, expected seconds like 60.")
    return time


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--consumer", help="Look at this consumer instead of the buffer.")
    parser.add_argument("--max-lag", type=whole_number, metavar="N", help="Unhealthy with more events than so many.")
    parser.add_argument(
        "--max-age", type=_seconds, metavar="SECONDS", help="Unhealthy when the oldest one waits for longer."
    )


HEALTH = Subcommand(
    name="health",
    help="One line and an exit code, for the probes of workers.",
    report=look,
    arguments=_arguments,
    several=True,
)
