"""`manage.py events snapshot`: the rows that a table has, as events."""

import sys
import time
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Q

from django_events.deriving.snapshotting import MOST_BUFFERED
from django_events.deriving.snapshotting import snapshot as take_snapshot
from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_reason,
    at_least_one,
)
from django_events.management.reporting import Report, fields
from django_events.outcomes import Snapshot
from django_events.phrases import duration
from django_events.workers.loop import Exit
from django_events.workers.stopping import stop_on_signals

EVERY = 0.5  # seconds


def snapshot(
    using: str,
    *,
    model: str,
    topic: str | None,
    where: list[tuple[str, Any]],
    type: str | None,
    rows_per_second: int | None,
    most_buffered: int,
    restart: bool,
    reason: str,
    by: str | None,
    execute: bool,
    verbosity: int,
    **options: Any,
) -> Report:
    bar = ProgressBar(shown=sys.stderr.isatty() or verbosity > 1)
    try:
        with stop_on_signals() as stop:
            taken = take_snapshot(
                model,
                topic=topic,
                where=Q(*where) if where else None,
                type=type,
                rows_per_second=rows_per_second,
                most_buffered=most_buffered,
                restart=restart,
                reason=reason,
                by=by,
                dry_run=not execute,
                using=using,
                on_progress=bar,
                stopping=lambda: stop.requested,
            )
    finally:
        bar.end()
    data = {"executed": execute, **taken._asdict()}
    text = fields(
        [
            ("table", taken.table),
            ("topic", taken.topic),
            ("type", taken.type),
            ("rows", f"{taken.rows:,} of about {taken.about:,}" if taken.about is not None else f"{taken.rows:,}"),
        ]
    )
    code = Exit.FAILED if execute and not taken.finished else Exit.DONE
    return Report(data, f"{text}\n\n{_told(taken, execute=execute)}", code=code)


def _told(taken: Snapshot, *, execute: bool) -> str:
    if not execute:
        return DRY_RUN
    if taken.finished:
        return "All rows are published. What changes them has its own events."
    return "It was stopped. Say the same again, and it goes on where it was."


class ProgressBar:
    """Rows, rate and time left, in a line that changes."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._began = time.monotonic()
        self._first: int | None = None
        self._at = 0.0

    def __call__(self, progress: Snapshot) -> None:
        now = time.monotonic()
        self._first = progress.rows if self._first is None else self._first
        if self._shown and (now - self._at >= EVERY or progress.finished):
            self._at = now
            sys.stderr.write(f"\r\033[K{self._line(progress, now)}")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._at:
            sys.stderr.write("\r\033[K")

    def _line(self, progress: Snapshot, now: float) -> str:
        rate = (progress.rows - (self._first or 0)) / max(now - self._began, 0.001)
        said = f"{progress.table}: {progress.rows:,} rows"
        if progress.about:
            share = min(progress.rows / progress.about, 1.0)
            filled = round(20 * share)
            said = f"{'#' * filled}{'·' * (20 - filled)} {share:4.0%}  {said} of about {progress.about:,}"
        left = ""
        if progress.about and rate:
            seconds = max(progress.about - progress.rows, 0) / rate
            left = f", {duration(timedelta(seconds=round(seconds)))} left"
        return f"{said}, {rate:,.0f}/s{left}"


def lookup(text: str) -> tuple[str, Any]:
    """A condition as QuerySet.filter() takes it: `status=paid`, `paid_at__isnull=true`, `total__range=1,9`."""
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "").isalnum():
        raise ArgumentTypeError(f"{text!r} is no condition, expected one like status=paid, or total__gte=100.")
    kind = name.rpartition("__")[2]
    if kind == "isnull":
        if value.lower() not in ("true", "false"):
            raise ArgumentTypeError(f"{text!r} is no condition, expected {name}=true or {name}=false.")
        return name, value.lower() == "true"
    return name, value.split(",") if kind in ("in", "range") else value


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="The model whose rows are published, like shop.Order.")
    parser.add_argument("--topic", help="Which topic they are for, where the model has events in several.")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        type=lookup,
        metavar="FIELD=VALUE",
        help="Only rows that fit, as filter() of a QuerySet takes it: total__gte=100. Several must all fit.",
    )
    parser.add_argument("--type", help="The type of the events; MODEL.snapshot by default.")
    parser.add_argument(
        "--rows-per-second", type=at_least_one, help="No more rows than that; without a limit by default."
    )
    parser.add_argument(
        "--most-buffered",
        type=at_least_one,
        default=MOST_BUFFERED,
        help="Rest while so many events of the topic wait for the transfer; 100,000 by default.",
    )
    parser.add_argument("--restart", action="store_true", help="Begin anew, instead of going on where it was stopped.")
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


SNAPSHOT = Subcommand(
    name="snapshot",
    help="Publish the rows that a table has, for consumers that go on with its changes.",
    report=snapshot,
    arguments=_arguments,
)
