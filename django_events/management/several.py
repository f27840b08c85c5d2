"""The same report of several databases: a section for each, and one that is out of reach says so in its place."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.core.management.base import CommandError

from django_events.management.databases import explained, worst
from django_events.management.reporting import Report
from django_events.sql.each import in_each

SECONDS = 30  # for the connection, and for each answer: then a database counts as out of reach


class _Section(NamedTuple):
    """What there is to tell of one database: a report, or the error that came instead."""

    using: str
    code: int
    text: str
    report: Report | None

    @property
    def data(self) -> dict[str, Any]:
        error, data = (self.text, None) if self.report is None else (None, self.report.data)
        return {"database": self.using, "code": self.code, "error": error, "report": data}


def report_of_each(aliases: Sequence[str], ask: Callable[[str], Report], *, seconds: int = SECONDS) -> Report:
    """Ask all of them at the same time. The exit code is that of the worst one: a failure, then one out of reach."""
    sections = [one.value() for one in in_each(aliases, partial(_section, ask), seconds=seconds).values()]
    return Report(
        {"databases": [one.data for one in sections]},
        "\n\n".join(f"DATABASE {one.using}\n\n{one.text}" for one in sections),
        [note for one in sections if one.report is not None for note in one.report.notes],
        worst(one.code for one in sections),
    )


def _section(ask: Callable[[str], Report], using: str) -> _Section:
    try:
        with explained(using):
            report = ask(using)
    except CommandError as error:
        return _Section(using, int(error.returncode), str(error), None)
    return _Section(using, int(report.code), report.text, report)
