"""The schedules of django-celery-beat as declarations of clocks, and what can't be one.

for schedule in schedules("default"):
    schedule.cron, schedule.why_not
"""

import json
import pprint
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django_events import sql
from django_events.declarations.cron import is_zone, wrong_cron
from django_events.masking import without_masked

SQL = sql.beside(__name__)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CLEANUP = "celery.backend_cleanup"  # Celery's own


class PeriodicTask(NamedTuple):
    """A periodic task as it is stored, with the one schedule that it has."""

    name: str
    task: str
    positional: str
    named: str
    queue: str | None
    priority: int | None
    expires: datetime | None
    expire_seconds: int | None
    one_off: bool
    start_time: datetime | None
    enabled: bool
    minute: str | None
    hour: str | None
    day_of_month: str | None
    month_of_year: str | None
    day_of_week: str | None
    timezone: str | None
    every: int | None
    period: str | None
    solar: str | None
    clocked: datetime | None
    now: datetime


class FutureClock(NamedTuple):
    """A periodic task as a clock, with what is different then; or why it can't be one."""

    name: str
    type: str
    cron: str
    tz: str
    value: Any
    notes: list[str]
    why_not: str = ""


class NoClock(Exception):
    """Why a schedule can't be a clock."""


def has_tables(using: str) -> bool:
    return bool(sql.fetch(using, SQL.has_tables)[0][0])


def schedules(using: str) -> list[FutureClock]:
    """All periodic tasks, by name. It reads, and nothing else."""
    return [_schedule(PeriodicTask(*row)) for row in sql.fetch(using, SQL.periodic_tasks)]


def _schedule(row: PeriodicTask) -> FutureClock:
    try:
        _refuse(row)
        value, masked = _value(row)
        cron, tz, notes = _times(row)
    except NoClock as error:
        return FutureClock(row.name, row.task, "", "", None, [], str(error))
    return FutureClock(row.name, row.task, cron, tz, value, [*notes, *_differences(row), *masked])


def _refuse(row: PeriodicTask) -> None:
    if row.task == CLEANUP:
        raise NoClock("it is Celery's own, for its results")
    if not row.enabled:
        raise NoClock("it is disabled")
    if row.expires is not None and row.expires <= row.now:
        raise NoClock(f"it expired at {row.expires:%Y-%m-%d %H:%M:%SZ}")
    if row.one_off:
        raise NoClock("it runs once: publish an event with publish_at")
    if row.start_time is not None and row.start_time > row.now:
        raise NoClock(f"it begins at {row.start_time:%Y-%m-%d %H:%M:%SZ}: declare it then")


def _value(row: PeriodicTask) -> tuple[dict[str, Any], list[str]]:
    try:
        value = {"args": json.loads(row.positional or "[]"), "kwargs": json.loads(row.named or "{}")}
    except (ValueError, RecursionError):
        raise NoClock("its arguments are not JSON") from None
    shown: dict[str, Any] = without_masked(value)
    return shown, ["the value has fields that are masked here: fill them in"] if shown != value else []


def _times(row: PeriodicTask) -> tuple[str, str, list[str]]:
    if row.minute is not None:
        return _of_crontab(row)
    if row.every is not None:
        return _of_interval(row.every, row.period or "")
    if row.solar is not None:
        raise NoClock(f"it follows the sun ({row.solar}), and no cron expression does")
    if row.clocked is not None:
        over = ", which is over" if row.clocked <= row.now else ": publish an event with publish_at"
        raise NoClock(f"it runs once, at {row.clocked:%Y-%m-%d %H:%M:%SZ}{over}")
    raise NoClock("it has no schedule")


def _of_crontab(row: PeriodicTask) -> tuple[str, str, list[str]]:
    fields = [row.minute, row.hour, row.day_of_month, row.month_of_year, row.day_of_week]
    written = ["".join(char for char in field or "*" if char not in "[] ") for field in fields]
    cron, tz = " ".join(written), row.timezone or "UTC"
    if written[2] != "*" and written[4] != "*":
        raise NoClock(
            f"{cron} has a day of the month and a day of the week: Celery wants both to be met, cron expressions one"
        )
    if wrong := wrong_cron(cron):
        raise NoClock(f"{cron} can't be used: {wrong}")
    if not is_zone(tz):
        raise NoClock(f"this machine knows no time zone {tz}")
    return cron, tz, []


def _of_interval(every: int, period: str) -> tuple[str, str, list[str]]:
    """An interval that divides an hour, a day or a week counts from its begin, and not from the last run."""
    said = f"every {every} {period}"
    try:
        length = timedelta(**{period: every})
    except (TypeError, OverflowError):
        raise NoClock(f"{said} can't be used") from None
    minutes, hours = length // timedelta(minutes=1), length // HOUR
    if timedelta(minutes=1) <= length < HOUR and HOUR % length == timedelta(0) and length == timedelta(minutes=minutes):
        cron = "* * * * *" if minutes == 1 else f"*/{minutes} * * * *"
    elif HOUR <= length < DAY and DAY % length == timedelta(0) and length == hours * HOUR:
        cron = "0 * * * *" if hours == 1 else f"0 */{hours} * * *"
    elif length == DAY:
        cron = "0 0 * * *"
    elif length == 7 * DAY:
        cron = "0 0 * * 0"
    else:
        raise NoClock(f"{said} is no cron expression: it doesn't divide an hour, a day or a week into whole minutes")
    return cron, "UTC", [f"{said}, counted from the last run until now"]


def _differences(row: PeriodicTask) -> list[str]:
    notes = [f"queue {row.queue!r} is left out: which worker handles it is up to the consumer"] if row.queue else []
    notes += ["its priority is left out"] if row.priority is not None else []
    notes += ["a run expired when it was late: missed='skip' does that"] if row.expire_seconds is not None else []
    return notes + ([f"it expires at {row.expires:%Y-%m-%d %H:%M:%SZ}: remove it then"] if row.expires else [])


def declarations_of(topic: str, found: Iterable[FutureClock]) -> str:
    """Lines for an app's events.py."""
    lines = ["from django_events import topic", "", f"tasks = topic({topic!r})"]
    for one in found:
        lines += ["", *(f"# {_in_a_line(note)}" for note in one.notes)]
        arguments = [repr(one.cron)] + ([f"tz={one.tz!r}"] if one.tz != "UTC" else [])
        arguments += [f"name={f'{topic}.{one.name}'!r}", f"type={one.type!r}"]
        value = pprint.pformat(one.value, width=100, sort_dicts=False).replace("\n", "\n    ")
        lines += ["tasks.every(", *(f"    {one}," for one in arguments), f"    value={value},", ")"]
    return "\n".join(lines) + "\n"


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
