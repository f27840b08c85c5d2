"""`manage.py events pause`, `resume`, `rewind` and `unregister`: move consumers by hand."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events import declarations
from django_events.consuming.registered import registered
from django_events.management.events.looking.status import lag_of, state_of
from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_name,
    add_reason,
    add_topic,
    at_least_one,
    start,
    wrong_usage,
)
from django_events.management.reporting import Report, table
from django_events.models import Position
from django_events.observing.lag import standings
from django_events.operating.pausing import pause as pause_consumer
from django_events.operating.pausing import resume as resume_consumer
from django_events.operating.rewinding import rewind as rewind_consumer
from django_events.operating.unregistering import unregister as unregister_consumer
from django_events.outcomes import Move


def pause(using: str, *, name: str, topic: str | None, reason: str, by: str | None, **options: Any) -> Report:
    topics = pause_consumer(name, topic=topic, reason=reason, by=by, using=using)
    done = f"Consumer {name} is paused on {_and(topics)}: what is in hand is finished, nothing more is begun."
    return _changed(name, topics, done, f"Consumer {name} was paused already. Nothing was changed.")


def resume(using: str, *, name: str, topic: str | None, reason: str, by: str | None, **options: Any) -> Report:
    topics = resume_consumer(name, topic=topic, reason=reason, by=by, using=using)
    done = f"Consumer {name} goes on with {_and(topics)}, and what failed is tried again now."
    return _changed(name, topics, done, f"Consumer {name} is neither paused nor stopped. Nothing was changed.")


def rewind(
    using: str,
    *,
    name: str,
    to: declarations.Start,
    topic: str | None,
    partition: int | None,
    wait: int,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    rows = registered(using, name, topic=topic)
    if isinstance(to, int) and len(rows) > 1:
        topics = _and([row.topic.name for row in rows])
        raise wrong_usage(f"Consumer {name} reads {topics}, and {to} is an offset in one of them. Say --topic.")
    moves = rewind_consumer(
        name,
        to=to,
        topic=topic,
        partition=partition,
        reason=reason,
        by=by,
        wait=timedelta(seconds=wait),
        dry_run=not execute,
        using=using,
    )
    data = {"consumer": name, "executed": execute, "moves": [move._asdict() for move in moves]}
    columns = ["topic", "partition", "next event was" if execute else "next event is", "becomes"]
    columns += ["events", "dead letters"]
    cells = [
        (
            move.topic,
            "all" if move.partition == Position.ALL else move.partition,
            move.before,
            move.after,
            _events(move),
            f"{move.dead_letters:,} dropped" if move.dead_letters else None,
        )
        for move in moves
    ]
    told = f"Consumer {name} is rewound." if execute else DRY_RUN
    if len(moves) > 1:
        dropped, again = sum(move.dead_letters for move in moves), sum(move.again for move in moves)
        omitted = sum(move.omitted for move in moves)
        told = f"All: {_again(again)}, {omitted:,} left out, {dropped:,} dead letters dropped. {told}"
    return Report(data, f"{table(columns, cells)}\n\n{told}")


def unregister(
    using: str, *, name: str, topic: str | None, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    found = standings(using, registered(using, name, topic=topic))
    unregister_consumer(name, topic=topic, reason=reason, by=by, dry_run=not execute, using=using)
    data = {"consumer": name, "executed": execute, "consumers": [one._asdict() for one in found]}
    cells = [(one.consumer, one.topic, state_of(one), one.handled, lag_of(one)) for one in found]
    told = f"Consumer {name} is forgotten." if execute else f"It would be forgotten how far it is. {DRY_RUN}"
    return Report(data, f"{table(['consumer', 'topic', 'state', 'handled', 'lag'], cells)}\n\n{told}")


def _changed(name: str, topics: list[str], done: str, nothing: str) -> Report:
    return Report({"consumer": name, "topics": topics}, done if topics else nothing)


def _and(topics: list[str]) -> str:
    return " and ".join(topics)


def _events(move: Move) -> str:
    parts = [_again(move.again)] if move.again else []
    return ", ".join([*parts, f"{move.omitted:,} left out"] if move.omitted else parts) or "none"


def _again(events: int) -> str:
    return f"{events:,} {'comes' if events == 1 else 'come'} again"


def _arguments_of_acts(parser: CommandParser) -> None:
    add_name(parser)
    add_topic(parser)
    add_reason(parser)
    add_by(parser)


def _arguments_of_rewind(parser: CommandParser) -> None:
    _arguments_of_acts(parser)
    parser.add_argument(
        "--to",
        required=True,
        type=start,
        help="The id of the next event to handle, a time like 2026-11-20T13:05:00Z, beginning, or end.",
    )
    parser.add_argument("--partition", type=int, help="Only this partition.")
    parser.add_argument(
        "--wait", type=at_least_one, default=10, help="How many seconds to wait for events in hand; 10 by default."
    )
    add_execute(parser)


def _arguments_of_unregister(parser: CommandParser) -> None:
    _arguments_of_acts(parser)
    add_execute(parser)


PAUSE = Subcommand(name="pause", help="Let a consumer begin nothing more.", report=pause, arguments=_arguments_of_acts)
RESUME = Subcommand(
    name="resume",
    help="Let a paused consumer go on, and what stopped or waits be tried again.",
    report=resume,
    arguments=_arguments_of_acts,
)
REWIND = Subcommand(
    name="rewind",
    help="Let a consumer go on at another offset of its log.",
    report=rewind,
    arguments=_arguments_of_rewind,
)
UNREGISTER = Subcommand(
    name="unregister",
    help="Forget a consumer that no app declares any more.",
    report=unregister,
    arguments=_arguments_of_unregister,
)
