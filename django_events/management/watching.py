"""A report that is repeated until Ctrl-C, also while the database is away."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from django_events.exceptions import InUse
from django_events.management.databases import explained
from django_events.management.reporting import Report, show
from django_events.phrases import moment
from django_events.workers.loop import Exit
from django_events.workers.stopping import stop_on_signals

CLEAR = "\x1b[H\x1b[2J"  # to the upper left; the screen, and not what was scrolled out of it before


def watch(command: BaseCommand, using: str, ask: Callable[[], Report], *, every: float, as_json: bool) -> None:
    """Ask and print, again and again. On a terminal each report takes the place of the one before; JSON is a line each.

    A database that can't be reached at the start is an error; one that goes away is said, and asked again.
    """
    reached = False
    with stop_on_signals() as stop:
        while not stop.requested:
            try:
                with explained(using):
                    report = ask()
            except CommandError as error:
                passes = error.returncode == Exit.UNREACHABLE or isinstance(error.__cause__, InUse)
                if not reached or not passes:
                    raise
                connections[using].close()
                command.stderr.write(f"{_now()} {error} Trying again every {every:g} s.")
            else:
                reached = True
                if not as_json:
                    report = replace(report, text=_headed(report.text, clear=command.stdout.isatty()))
                if not show(command, report, as_json=as_json, indent=None):
                    break
            stop.wait(every)


def _headed(text: str, *, clear: bool) -> str:
    return f"{CLEAR if clear else ''}{_now()}\n\n{text}" + ("" if clear else "\n")


def _now() -> str:
    return moment(datetime.now(UTC))
