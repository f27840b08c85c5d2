"""`manage.py events clock`: which clocks there are; pause one, let it go on, let it tick now, remove it."""

from typing import Any

from django.core.management.base import CommandParser

from django_events import declarations
from django_events.management.events.subcommand import DRY_RUN, Subcommand, add_by, add_reason, wrong_usage
from django_events.management.reporting import Report, table
from django_events.models import Clock
from django_events.operating.clocks import pause_clock, remove_clock, resume_clock, run_clock


def clock(
    using: str, *, action: str, name: str | None, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    if (name is None) is not (action == "list"):
        raise wrong_usage("Say what to do with which clock, like: manage.py events clock pause reports.nightly")
    if name is None:
        return _listed(using)
    if action == "run":
        tick = run_clock(name, reason=reason, by=by, using=using)
        return Report({"clock": name, "tick": tick}, f"Clock {name} ticks now: the event says {tick.isoformat()}.")
    if action == "remove":
        remove_clock(name, reason=reason, by=by, dry_run=not execute, using=using)
        told = f"Clock {name} is removed." if execute else f"Clock {name} would be removed. {DRY_RUN}"
        return Report({"clock": name, "executed": execute}, told)
    changed = (pause_clock if action == "pause" else resume_clock)(name, reason=reason, by=by, using=using)
    did, did_before = ("is paused", "was paused already") if action == "pause" else ("goes on", "is not paused")
    told = f"Clock {name} {did}." if changed else f"Clock {name} {did_before}. Nothing was changed."
    return Report({"clock": name, "changed": changed}, told)


def _listed(using: str) -> Report:
    declared = {one.name for one in declarations.clocks}
    data = [
        {
            "clock": row.name,
            "topic": row.topic.name,
            "cron": row.cron,
            "tz": row.tz,
            "type": row.type,
            "key": row.key,
            "missed": row.missed,
            "overlap": row.overlap,
            "next_at": None if row.paused_at else row.next_at,
            "last_at": row.last_at,
            "paused_at": row.paused_at,
            "overlapped": row.overlapped,
            "overlapped_at": row.overlapped_at,
            "overlapped_by": row.overlapped_by or None,
            "overlapped_as": row.overlapped_as or None,
            "declared": row.name in declared,
        }
        for row in Clock.objects.using(using).select_related("topic").defer("value").order_by("name")
    ]
    shown = ["clock", "topic", "cron", "tz", "type", "next_at", "last_at", "paused_at", "declared"]
    if any(row["overlap"] == "skip" for row in data):
        shown += ["overlapped", "overlapped_at", "overlapped_by", "overlapped_as"]
    cells = [[row[name] for name in shown] for row in data]
    return Report(data, table([name.replace("_", " ") for name in shown], cells) if cells else "No clocks.")


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        metavar="ACTION",
        choices=["list", "pause", "resume", "run", "remove"],
        default="list",
        help="list, pause, resume, run or remove; list by default.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="The clock, to pause, resume, run or remove it.")
    add_reason(parser)
    add_by(parser)
    parser.add_argument("--execute", action="store_true", help="With remove: do it, instead of telling.")


CLOCK = Subcommand(
    name="clock",
    help="The clocks with their next ticks; pause, resume, run or remove one.",
    report=clock,
    arguments=_arguments,
)
