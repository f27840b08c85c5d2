"""`manage.py events doctor`: every part of a database and of this process examined, the worst first."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django_events.management.events.subcommand import Subcommand
from django_events.management.reporting import WIDTH, Report, printable
from django_events.observing.doctoring.examining import examine
from django_events.observing.findings import WORST_FIRST, Finding
from django_events.observing.problems import together
from django_events.phrases import count
from django_events.workers.loop import Exit

WIDEST = max(map(len, WORST_FIRST))


def doctor(using: str, **options: Any) -> Report:
    """The exit code is 1 if there is an error."""
    found = examine(using)
    severities = Counter(one.severity for one in found)
    data = {
        "database": using,
        "severities": {severity: severities[severity] for severity in WORST_FIRST},
        "findings": [one.flat() for one in found],
    }
    text = "\n".join([_summary(found), "", *map(_block, together(using, found))])
    return Report(data, text, code=Exit.FAILED if severities["error"] else Exit.DONE)


DOCTOR = Subcommand(name="doctor", help="Examine the database and this process, and say what to do.", report=doctor)


def _summary(found: Sequence[Finding]) -> str:
    severities = Counter(one.severity for one in found)
    parts = [
        count(severities["error"], "error").upper() if severities["error"] else "No error",
        *([count(severities["warning"], "warning")] if severities["warning"] else []),
        *([f"{severities['unknown']} unknown"] if severities["unknown"] else []),
        f"{severities['ok']} ok",
    ]
    return f"{', '.join(parts)}."


def _block(one: Finding) -> str:
    known = (one.kind, str(one.data.get("problem", "")), str(one.subject), printable(one.what))
    what = textwrap.wrap(
        f"{one.severity:<{WIDEST}}  {': '.join(part for part in known if part)}",
        WIDTH,
        subsequent_indent=" " * (WIDEST + 4),
        max_lines=4,
        placeholder=" …",
    )
    # What is to be done is to be copied: it is not wrapped.
    return "\n".join([*what, *([f"{' ' * (WIDEST + 2)}→ {printable(one.remedy)}"] if one.remedy else [])])
