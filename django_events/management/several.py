"""The same report of several databases: a section for each, and one that is out of reach says so in its place."""

from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandError

from django_events.management.databases import explained, worst
from django_events.management.reporting import Report
from django_events.sql.each import in_each

SECONDS = 30  # for the connection, and for each answer: then a database counts as out of reach


def report_of_each(aliases: Sequence[str], ask: Callable[[str], Report], *, seconds: int = SECONDS) -> Report:
    """Ask all of them at the same time. The exit code is that of the worst one: a failure, then one out of reach."""
    answers = in_each(aliases, lambda using: _explained(using, ask), seconds=seconds)
    found = {using: answers[using].value() for using in aliases}
    data = [
        {
            "database": using,
            "code": int(one.returncode if isinstance(one, CommandError) else one.code),
            "error": str(one) if isinstance(one, CommandError) else None,
            "report": None if isinstance(one, CommandError) else one.data,
        }
        for using, one in found.items()
    ]
    sections = [
        f"DATABASE {using}\n\n{one if isinstance(one, CommandError) else one.text}" for using, one in found.items()
    ]
    notes = [note for one in found.values() if isinstance(one, Report) for note in one.notes]
    return Report({"databases": data}, "\n\n".join(sections), notes, worst([_code(one) for one in data]))


def _code(one: dict[str, Any]) -> int:
    return int(one["code"])


def _explained(using: str, ask: Callable[[str], Report]) -> Report | CommandError:
    try:
        with explained(using):
            return ask(using)
    except CommandError as error:
        return error
