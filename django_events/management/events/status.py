"""`manage.py events status`: one look, the most important trouble first."""

import textwrap
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django_events.consuming.lag import Progress, Standing, importance, standings
from django_events.consuming.troubles import Trouble, troubles
from django_events.log.inventory import Log, NextScheduled, Waiting, logs, next_scheduled, waiting
from django_events.management.events.subcommand import Subcommand
from django_events.management.reporting import WIDTH, Report, printable, table
from django_events.phrases import count, duration, moment

SHOWN = 20


def status(using: str, **options: Any) -> Report:
    in_buffer, in_logs, consumers = waiting(using), logs(using), standings(using)
    scheduled = next_scheduled(using)
    found = troubles(using, in_buffer, scheduled, consumers)
    consumers.sort(key=importance)
    data = {
        "database": using,
        "troubles": [trouble._asdict() for trouble in found],
        "buffer": [one._asdict() for one in in_buffer],
        "scheduled": scheduled and scheduled._asdict(),
        "topics": [
            {"topic": one.topic.name, "events": one.events, "last_id": one.last_id, "logged_at": one.logged_at}
            for one in in_logs
        ],
        "consumers": [standing._asdict() for standing in consumers],
    }
    parts = [_troubles(found), _buffer(in_buffer), *_scheduled(scheduled), _topics(in_logs), _consumers(consumers)]
    return Report(data, "\n\n".join(parts))


STATUS = Subcommand(name="status", help="One look at everything, the most important trouble first.", report=status)


def state_of(one: Standing) -> str:
    """`stopped 1 of 8`, where not all partitions are in the same state."""
    return one.state if one.in_state == one.partitions else f"{one.state} {one.in_state} of {one.partitions}"


def lag_of(one: Standing | Progress) -> int | str:
    return f"≥ {one.lag:,}" if one.more_lag else one.lag


def dead_letters_of(one: Standing) -> int | str:
    return f"≥ {one.dead_letters:,}" if one.more_dead_letters else one.dead_letters


def _troubles(found: Sequence[Trouble]) -> str:
    if not found:
        return "No trouble."
    blocks = [f"{count(len(found), 'trouble').upper()}", *map(_trouble, found[:SHOWN])]
    return "\n".join([*blocks, *_more(len(found), "troubles")])


def _trouble(trouble: Trouble) -> str:
    whom = " of ".join(name for name in (trouble.consumer, trouble.topic) if name)
    what = textwrap.wrap(
        ": ".join(part for part in (trouble.kind, whom, printable(trouble.what)) if part),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        max_lines=3,
        placeholder=" …",
    )
    return "\n".join([*what, f"    → {trouble.remedy}"])


def _buffer(in_buffer: Sequence[Waiting]) -> str:
    if not in_buffer:
        return "Nothing waits for the transfer."
    rows = [(one.topic, f"≥ {one.events:,}" if one.more else one.events, one.age) for one in in_buffer]
    return "\n".join([table(["buffer of", "waiting", "oldest since"], rows[:SHOWN]), *_more(len(rows), "topics")])


def _scheduled(one: NextScheduled | None) -> list[str]:
    if one is None:
        return []
    when = f"due since {duration(one.overdue)}" if one.overdue > timedelta(0) else f"in {duration(-one.overdue)}"
    return [f"The next scheduled event is for {one.topic}, {moment(one.publish_at)}: {when}."]


def _topics(in_logs: Sequence[Log]) -> str:
    if not in_logs:
        return "No topics."
    rows = [(one.topic.name, one.events, one.last_id, one.logged_at) for one in in_logs]
    return "\n".join([table(["topic", "events", "last id", "last event"], rows[:SHOWN]), *_more(len(rows), "topics")])


def _consumers(consumers: Sequence[Standing]) -> str:
    if not consumers:
        return "No consumers."
    columns = ["consumer", "topic", "state", "lag", "handled", "failed", "dead", "attempts", "next attempt", "holder"]
    rows = [
        (
            one.consumer,
            one.topic,
            state_of(one),
            lag_of(one),
            one.handled,
            one.failed,
            dead_letters_of(one),
            one.attempts or None,
            one.retry_at,
            one.holder,
        )
        for one in consumers
    ]
    more = _more(len(rows), "consumers, which are better off: manage.py events consumers")
    return "\n".join([table(columns, rows[:SHOWN]), *more])


def _more(number: int, what: str) -> list[str]:
    return [f"… and {number - SHOWN:,} more {what}"] if number > SHOWN else []
