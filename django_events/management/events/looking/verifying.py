"""`manage.py events verify`: prove the invariants on a database, or name the offenders."""

import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser
from django.db import connections

from django_events.log.inventory import existing
from django_events.management.events.looking.offenders import told_of
from django_events.management.events.subcommand import Subcommand, at_least_one, wrong_usage
from django_events.management.reporting import Report, now_and_then, table
from django_events.observing.verifying.proving import Proved, Verified
from django_events.observing.verifying.proving import verify as verify_database
from django_events.phrases import count, duration
from django_events.workers.loop import Exit


def verify(
    using: str,
    *,
    topic: str | None,
    last: int | None,
    against: str | None = None,
    catalog: str | None = None,
    verbosity: int,
    **options: Any,
) -> Report:
    if against is not None:
        from django_events.management.events.looking.comparing import compared

        return compared(using, topic=topic, last=last, against=against, catalog=catalog, verbosity=verbosity)
    if catalog is not None:
        raise wrong_usage("--catalog is for --against: say which namespace of it.")
    if connections[using].in_atomic_block:
        raise wrong_usage("verify looks at one moment after the other, so it can't run inside a transaction.")
    progress = now_and_then(_walked) if sys.stderr.isatty() or verbosity > 1 else _silent
    row = existing(using, topic) if topic is not None else None
    found = verify_database(using, topic=row, last=last, on_progress=progress)
    data = {
        "database": using,
        "proved": not found.offenders,
        "findings": [one.flat() for one in found.offenders],
        "more": found.offenders.more,
        "topics": [one._asdict() for one in found.topics],
        "events": _events(found),
        "seconds": found.took,
        "notes": found.notes,
    }
    parts = [told_of(found.offenders), _topics(found.topics), *found.notes, _summary(found, last)]
    code = Exit.FAILED if found.offenders else Exit.DONE
    return Report(data, "\n\n".join(part for part in parts if part), code=code)


def _topics(proved: Sequence[Proved]) -> str:
    columns = ["topic", "from", "to", "events", "consumers", "positions", "deliveries", "dead letters"]
    return table(columns, proved) if proved else "No topics."


def _summary(found: Verified, last: int | None) -> str:
    events, seconds = _events(found), found.took.total_seconds()
    speed = f", {events / seconds:,.0f} per second" if seconds >= 1 else ""
    walked = f"{count(events, 'event')} walked in {duration(found.took)}{speed}."
    if found.offenders:
        return walked
    part = "" if last is None else f", as far as the last {last:,} ids of each log tell"
    return (
        f"Proved{part}: ids and numbers without a gap, times in order, segments attached, positions within the log and "
        f"right, deliveries and dead letters of events of the log and each in one place. {walked}"
    )


def _events(found: Verified) -> int:
    return sum(one.events for one in found.topics)


def _silent(topic: str, events: int) -> None:
    """No progress is shown."""


def _walked(topic: str, events: int) -> str:
    return f"{topic}: {count(events, 'event')} walked …"


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("--topic", help="Only this topic, and its consumers.")
    parser.add_argument(
        "--against", metavar="PATH", help="Compare the log with what export_events wrote there, instead."
    )
    parser.add_argument("--catalog", metavar="NAME", help="With --against: a catalogue of PyIceberg.")
    parser.add_argument("--last", type=at_least_one, metavar="N", help="Of each log, only the last N events.")


VERIFY = Subcommand(
    name="verify",
    help="Prove that nothing is missing, twice or out of order, or name the offenders.",
    report=verify,
    arguments=_arguments,
)
