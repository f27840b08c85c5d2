"""`manage.py events maintain`: keep a database in order, from cron; and how it went the last time."""

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_events import models
from django_events.exceptions import did_you_mean
from django_events.log import retention
from django_events.maintaining.steps import STEPS, Step
from django_events.management.events.subcommand import Subcommand, wrong_usage
from django_events.management.reporting import Report, table
from django_events.phrases import moment
from django_events.workers.loop import Exit, connect_for_work
from django_events.workers.maintaining import run_steps

LONGEST_PAUSE = timedelta(days=7)
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
BY_NAME = {step.name: step for step in STEPS}


def maintain(
    using: str, *, steps: Sequence[Step], list: bool, pause: timedelta | None, resume: bool, **options: Any
) -> Report:
    if ((list or pause is not None or resume) and steps) or list + (pause is not None) + resume > 1:
        raise wrong_usage("--list, --pause and --resume stand alone: each says something else, and none runs a step.")
    if list:
        return _last_runs(using)
    if pause is not None or resume:
        return _paused(using, pause)
    if connections[using].in_atomic_block:
        raise CommandError(
            "events maintain commits step by step, so it can't run inside a transaction of the caller.",
            returncode=Exit.USAGE,
        )
    connect_for_work(using)
    outcomes = run_steps(using, steps or STEPS)
    data = [
        {"step": one.step, "seconds": round(one.seconds, 3), "result": one.result, "error": one.error}
        for one in outcomes
    ]
    cells = [(one.step, one.seconds, one.error or _said(one.result)) for one in outcomes]
    failed = any(one.error for one in outcomes)
    return Report(data, table(["step", "seconds", "result"], cells), code=Exit.FAILED if failed else Exit.DONE)


def _paused(using: str, period: timedelta | None) -> Report:
    if connections[using].in_atomic_block:
        raise wrong_usage("A pause that isn't committed keeps nothing, so this can't run inside a transaction.")
    until = retention.pause(using, period)
    said = "Retention goes on." if until is None else f"Retention drops nothing until {moment(until)}."
    return Report({"step": "retention", "paused_until": until}, said)


def _last_runs(using: str) -> Report:
    rows = {row.name: row for row in models.MaintenanceStep.objects.using(using)}
    data: Any = []
    for step in STEPS:
        row = rows.get(step.name)
        data.append(
            {
                "step": step.name,
                "every": step.every,
                "started_at": row and row.started_at,
                "finished_at": row and row.finished_at,
                "holder": row.holder if row else "",
                "result": row.result if row else None,
                "error": row.error if row else "",
                "failing_since": row and row.failing_since,
                "leased_until": row and row.leased_until,
                "paused_until": row and row.paused_until,
            }
        )
    cells = [
        (
            one["step"],
            one["every"],
            one["finished_at"] or "never",
            one["holder"],
            _state(one),
        )
        for one in data
    ]
    return Report(data, table(["step", "every", "last run", "by", "result"], cells))


def _state(one: dict[str, Any]) -> str | None:
    if one["leased_until"]:
        return f"runs since {moment(one['started_at'])}, and may be taken over at {moment(one['leased_until'])}"
    return one["error"] or (_said(one["result"]) if one["finished_at"] else None)


def _said(result: dict[str, Any] | None) -> str:
    """A result as text, without its zeros."""
    if result is None:
        return "not run: another process is at it"
    return ", ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in result.items() if value) or "–"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(name if isinstance(of, dict) else f"{name} {of}" for name, of in value.items())
    return "; ".join(value) if isinstance(value, list) else f"{value:,}"


def _step(name: str) -> Step:
    if name not in BY_NAME:
        raise ArgumentTypeError(f"there is no step {name!r}. {did_you_mean(name, BY_NAME)}")
    return BY_NAME[name]


def _period(text: str) -> timedelta:
    """`90m`, `2h`, `1d`: no more than a week, for the disk fills up meanwhile."""
    found = re.fullmatch(r"(\d{1,5})([mhd])", text)
    period = timedelta(**{UNITS[found[2]]: int(found[1])}) if found else timedelta(0)
    if not timedelta(0) < period <= LONGEST_PAUSE:
        raise ArgumentTypeError(f"{text!r} is no pause, expected one like 90m, 2h or 1d, a week at most.")
    return period


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("steps", nargs="*", type=_step, metavar="STEP", help=f"Only these, of {', '.join(BY_NAME)}.")
    parser.add_argument("--list", action="store_true", help="Say how the last runs went, and run nothing.")
    parser.add_argument(
        "--pause",
        type=_period,
        metavar="PERIOD",
        help="Let retention drop nothing for so long, like 2h, in any process: for a dump. Nothing is run.",
    )
    parser.add_argument("--resume", action="store_true", help="Let retention go on before the pause is over.")


MAINTAIN = Subcommand(
    name="maintain",
    help="Make segments, drop what is over, prune, and take samples: now, for cron.",
    report=maintain,
    arguments=_arguments,
    several=True,
)
