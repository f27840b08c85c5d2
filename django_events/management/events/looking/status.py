"""`manage.py events status`: one look, the most important problem first."""

import textwrap
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.core.management.base import CommandParser

from django_events import sql
from django_events.consuming.registered import registered
from django_events.log.inventory import Log, NextScheduled, Waiting, logs, next_scheduled, waiting
from django_events.management.events.subcommand import Subcommand, add_watch
from django_events.management.reporting import WIDTH, Report, printable, table
from django_events.observing.barriers import Barrier, barriers
from django_events.observing.findings import Finding
from django_events.observing.lag import PartitionProgress, Standing, importance, oldest_waits, standings
from django_events.observing.problems import find_problems, together
from django_events.observing.queues import Figure, QueueFigures, figures
from django_events.observing.samples import Pace
from django_events.operating.moved_keys import WaitingConsumer, waiting_consumers
from django_events.phrases import count, duration, moment

SHOWN = 20


class Row(NamedTuple):
    """A consumer on a topic, how long the oldest event waits for it, and what it handles a second, if that is known."""

    standing: Standing
    behind: timedelta | None
    rate: float | None
    queue: QueueFigures | None


def status(using: str, *, names: Sequence[str], format: str, **options: Any) -> Report:
    rows = [row for name in dict.fromkeys(names) for row in registered(using, name)] if names else None
    in_buffer, in_logs, consumers = waiting(using), logs(using), standings(using, rows)
    scheduled, pace = next_scheduled(using), Pace.since_sample(using)
    found = find_problems(using, in_buffer, scheduled, consumers)
    if names:
        found = [one for one in found if one.subject.consumer in names]
        topics = {one.topic for one in consumers}
        in_buffer = [one for one in in_buffer if one.topic in topics]
        in_logs = [one for one in in_logs if one.topic.name in topics]
    consumers.sort(key=importance)
    at_barriers = {one.consumer_id: one for one in barriers(using, rows)}
    waits = waits_of(using, consumers)
    told = _rows(using, consumers if format == "json" else consumers[:SHOWN], pace)
    data = {
        "database": using,
        "at": sql.now(using),
        "findings": [one.flat() for one in found],
        "buffer": [one._asdict() for one in in_buffer],
        "scheduled": scheduled and scheduled._asdict(),
        "topics": [
            {"topic": one.topic.name, "events": one.events, "last_id": one.last_id, "logged_at": one.logged_at}
            for one in in_logs
        ],
        "consumers": [
            {
                **consumer_data(
                    row.standing,
                    row.queue,
                    at_barriers.get(row.standing.consumer_id),
                    waits.get(row.standing.consumer_id),
                ),
                "behind": row.behind,
                "rate": row.rate,
            }
            for row in told
        ],
    }
    parts = [_consumers(told, len(consumers)), *queues([(row.standing, row.queue) for row in told])]
    listed = "\n\n".join([*parts, *held_back([*at_barriers.values(), *waits.values()])])
    if names:
        return Report(data, "\n\n".join([_problems(using, found), listed]))
    parts = [_problems(using, found), _buffer(in_buffer), *_scheduled(scheduled), _topics(in_logs), listed]
    return Report(data, "\n\n".join(parts))


def _rows(using: str, consumers: Sequence[Standing], pace: Pace) -> list[Row]:
    behind = oldest_waits(using, [one.consumer_id for one in consumers if one.lag])
    queues = figures(using, consumers)
    return [
        Row(one, behind.get(one.consumer_id), pace.of_consumer(one), queues.get(one.consumer_id)) for one in consumers
    ]


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="Only these consumers, and their problems.")
    add_watch(parser)


STATUS = Subcommand(
    name="status",
    help="One look at everything, the most important problem first.",
    report=status,
    arguments=_arguments,
    several=True,
    looks=True,
)


def state_of(one: Standing) -> str:
    """`stopped 1 of 8`, where not all partitions are in the same state."""
    return one.state if one.in_state == one.partitions else f"{one.state} {one.in_state} of {one.partitions}"


def lag_of(one: Standing | PartitionProgress) -> int | str:
    return f"≥ {one.lag:,}" if one.more_lag else one.lag


def dead_letters_of(one: Standing) -> int | str:
    return f"≥ {one.dead_letters:,}" if one.more_dead_letters else one.dead_letters


def consumer_data(
    one: Standing, queue: QueueFigures | None, barrier: Barrier | None, waits: WaitingConsumer | None
) -> dict[str, Any]:
    """As JSON tells it; `queue` is null for a stream, `barrier` where no other layout comes, and `waits_from` where it
    waits for no other shard.
    """
    told = {"queue": queue and queue.flat(), "barrier": barrier and barrier.flat()}
    return {**one._asdict(), **told, "waits_from": waits and waits.waits_from}


def waits_of(using: str, found: Sequence[Standing]) -> dict[int, WaitingConsumer]:
    """Those of these consumers that wait for other shards, by id; `events shards` says why."""
    ids = {one.consumer_id for one in found}
    return {one.consumer_id: one for one in waiting_consumers(using, ask=False) if one.consumer_id in ids}


def held_back(found: Sequence[Barrier | WaitingConsumer]) -> list[str]:
    """Which consumers go over to another layout, or wait for other shards, and what they wait for."""
    return ["\n".join(one.said for one in found)] if found else []


def queues(rows: Sequence[tuple[Standing, QueueFigures | None]]) -> list[str]:
    """The figures of the queues among these consumers as a table, the age of the oldest event behind each number."""
    found = [(one, figures) for one, figures in rows if figures is not None]
    if not found:
        return []
    names = [name for name, _ in QueueFigures().states()]
    cells = [(one.consumer, one.topic, *(_figure(figure) for _, figure in of.states())) for one, of in found]
    return [table(["queue", "topic", *names], cells)]


def _figure(one: Figure) -> str:
    return f"{one}, {duration(one.oldest)}" if one.oldest is not None else str(one)


def _problems(using: str, found: Sequence[Finding]) -> str:
    if not found:
        return "No problem."
    told = together(using, found)
    blocks = [f"{count(len(found), 'problem').upper()}", *map(_problem, told[:SHOWN])]
    return "\n".join([*blocks, *_more(len(told), "problems")])


def _problem(one: Finding) -> str:
    what = textwrap.wrap(
        ": ".join(part for part in (one.kind, str(one.subject), printable(one.what)) if part),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        max_lines=3,
        placeholder=" …",
    )
    return "\n".join([*what, f"    → {one.remedy}"])


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


def _consumers(rows: Sequence[Row], number: int) -> str:
    if not rows:
        return "No consumers."
    columns = ["consumer", "topic", "state", "lag", "behind", "per s", "dead", "attempts", "next attempt", "holder"]
    cells = [
        (
            one.consumer,
            one.topic,
            state_of(one),
            lag_of(one),
            behind,
            None if rate is None else f"{rate:,.1f}",
            dead_letters_of(one),
            one.attempts or None,
            one.retry_at,
            one.holder,
        )
        for one, behind, rate, _ in rows
    ]
    more = _more(number, "consumers, which are better off: manage.py events consumers")
    return "\n".join([table(columns, cells), *more])


def _more(number: int, what: str) -> list[str]:
    return [f"… and {number - SHOWN:,} more {what}"] if number > SHOWN else []
