"""`manage.py events verify --against PATH`: prove that the log and what was exported of it agree."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from django_events.management.events.looking.offenders import told_of
from django_events.management.reporting import Report, now_and_then, table
from django_events.management.spark import dsn_of, explained, local, names_of_keys
from django_events.phrases import count, duration
from django_events.workers.loop import Exit

if TYPE_CHECKING:
    from django_events.exporting.comparison import Agreed


def compared(
    using: str, *, topic: str | None, last: int | None, against: str, catalog: str | None, verbosity: int
) -> Report:
    with explained("lake"):
        from django_events.exporting.comparing import compare
        from django_events.exporting.comparison import Comparison

        wanted = Comparison(
            dsn=dsn_of(using),
            topics=(topic,) if topic else (),
            path=against,
            catalog=catalog,
            last=last,
            names=names_of_keys,
        )
        if catalog is None:
            wanted = replace(wanted, path=local(against, option="--against", master=None, remote=None))
        progress = now_and_then(_compared) if sys.stderr.isatty() or verbosity > 1 else _silent
        found = compare(wanted, progress)
    events = sum(one.events for one in found.topics)
    data = {
        "database": using,
        "against": against,
        "proved": not found.offenders,
        "findings": [one.flat() for one in found.offenders],
        "more": found.offenders.more,
        "topics": [one._asdict() for one in found.topics],
        "events": events,
        "seconds": found.took,
        "notes": found.notes,
    }
    columns = ["topic", "table of", "from", "to", "events", "expired", "compacted", "erased", "not exported"]
    walked = f"{count(events, 'event')} compared in {duration(found.took)}."
    proved = "" if found.offenders else f"Proved: {against} and the log have the same {_what(found.topics, last)}. "
    parts = [told_of(found.offenders), table(columns, found.topics), *found.notes, f"{proved}{walked}"]
    code = Exit.FAILED if found.offenders else Exit.DONE
    return Report(data, "\n\n".join(part for part in parts if part), code=code)


def _what(topics: "Sequence[Agreed]", last: int | None) -> str:
    """What the two have the same of."""
    from django_events.exporting.tables.table import EVENTS, STATES

    kinds = {one.kind for one in topics}
    events = "events, each once" if last is None else f"of the last {last:,} ids, each once"
    if STATES not in kinds:
        return events
    keys = (
        "newest event of each key"
        if last is None
        else f"newest event of each key that has one of the last {last:,} ids"
    )
    return f"{events}, and the same {keys}" if EVENTS in kinds else keys


def _silent(topic: str, events: int) -> None:
    """No progress is shown."""


def _compared(topic: str, events: int) -> str:
    return f"{topic}: {count(events, 'event')} compared …"
