"""`manage.py events health`: one line and an exit code, for the probes of workers."""

from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events import health, sql
from django_events.consuming.lag import Standing, oldest_waits, standings
from django_events.consuming.registered import registered
from django_events.log.inventory import waiting
from django_events.management.events.subcommand import Subcommand, whole_number
from django_events.management.reporting import Report
from django_events.phrases import count, duration
from django_events.workers.loop import Exit, Unreachable

AT_REST = ("paused", "stopped")  # a person's business: a worker that is started again changes nothing
LIMITS = {"statement_timeout": "5s", "lock_timeout": "1s"}


def look(using: str, *, max_lag: int | None, max_age: timedelta | None, consumer: str | None, **options: Any) -> Report:
    """Out of reach has an exit code of its own, 75; the others are 0 and 1."""
    fault = health.fault(using)
    if fault is not None and fault.reason == "database":
        raise Unreachable(fault.told)
    if fault is not None:
        return _report(fault.told, healthy=False, reason=fault.reason)
    if consumer is not None:
        return _of_consumer(using, consumer, max_lag, max_age)
    return _of_transfer(using, max_lag, max_age)


def _of_transfer(using: str, max_lag: int | None, max_age: timedelta | None) -> Report:
    found = waiting(using, **LIMITS)
    lag, age = sum(one.events for one in found), max((one.age for one in found), default=timedelta(0))
    more = any(one.more for one in found)
    told = f"{count(lag, 'event', more=more)} in the buffer" + (f", the oldest for {duration(age)}." if lag else ".")
    return _report(told, healthy=not _exceeds(lag, age, max_lag, max_age), reason="transfer", lag=lag, age=age)


def _of_consumer(using: str, name: str, max_lag: int | None, max_age: timedelta | None) -> Report:
    with sql.batch(using, **LIMITS):
        found: list[Standing] = standings(using, registered(using, name))
        active = [one for one in found if one.paused_at is None and one.state not in AT_REST]
        waits = oldest_waits(using, [one.consumer_id for one in active if one.lag])
    lag, age = sum(one.lag for one in active), max(waits.values(), default=timedelta(0))
    told = f"{name} is {count(lag, 'event')} behind" + (f", the oldest for {duration(age)}." if lag else ".")
    for one in found:
        if one not in active:
            told += f" Of {one.topic} it is {'paused' if one.paused_at else one.state}."
    return _report(told, healthy=not _exceeds(lag, age, max_lag, max_age), reason="consumer", lag=lag, age=age)


def _exceeds(lag: int, age: timedelta, max_lag: int | None, max_age: timedelta | None) -> bool:
    return (max_lag is not None and lag > max_lag) or (max_age is not None and age > max_age)


def _report(told: str, *, healthy: bool, reason: str, **seen: Any) -> Report:
    data = {"healthy": healthy, "reason": None if healthy else reason, "told": told, **seen}
    return Report(data, f"{'ok' if healthy else 'unhealthy'}: {told}", code=Exit.DONE if healthy else Exit.FAILED)


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is no number of seconds, expected one like 60.") from None


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--consumer", help="Look at this consumer instead of the buffer.")
    parser.add_argument("--max-lag", type=whole_number, metavar="N", help="Unhealthy with more events than so many.")
    parser.add_argument(
        "--max-age", type=_seconds, metavar="SECONDS", help="Unhealthy when the oldest one waits for longer."
    )


HEALTH = Subcommand(
    name="health", help="One line and an exit code, for the probes of workers.", report=look, arguments=_arguments
)
